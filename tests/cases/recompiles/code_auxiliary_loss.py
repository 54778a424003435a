"""{"compiles": 2, "recompiles": [{"cause": "new-code"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        loss = model(torch.randn(8, 16).to(device)).pow(2).mean()
        if step >= 4:
            loss = loss + 0.01 * model.weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
