"""{"compiles": 3, "recompiles": [{"cause": ["early-read", "new-code"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        x = torch.randn(8, 16).to(device)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step % 4 == 3:
            xm.mark_step()  # site logging
            print(step, loss.item())
        optimizer.step()
        xm.mark_step()  # site
