"""{"compiles": 3, "recompiles": [{"cause": "new-code", "normal": true}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        loss = model(torch.randn(4, 8).to(device)).pow(2).mean() / 3
        loss.backward()
        torch_xla.sync()  # site
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()  # site
