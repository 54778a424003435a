"""{"compiles": 2, "recompiles": [{"cause": "python-number", "mentions": ["lr"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    for _ in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        torch_xla.sync()  # site
