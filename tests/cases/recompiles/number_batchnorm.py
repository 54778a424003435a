"""{"compiles": 2, "recompiles": [{"cause": ["python-number", "new-code"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 16).to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
