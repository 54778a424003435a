"""{"compiles": 2, "recompiles": [{"cause": "python-number", "mentions": ["lam"], "normal": false}]}"""

import torch
import torch_xla
from torch.nn.functional import cross_entropy


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lam in (0.3, 0.7, 0.999999999999574, 0.4):  # the third is 1 as float32, which torch_xla makes a constant
        x, y = torch.randn(16, 8).to(device), torch.randint(0, 3, (16,)).to(device)
        other = torch.randperm(16).to(device)
        optimizer.zero_grad()
        output = model(lam * x + (1 - lam) * x[other])
        loss = lam * cross_entropy(output, y) + (1 - lam) * cross_entropy(output, y[other])
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
