"""{"compiles": 2, "recompiles": [{"cause": "python-number", "mentions": ["0.1"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    dropout = torch.nn.Dropout(0.0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), dropout, torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        dropout.p = 0.1 * epoch
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 16).to(device)).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
