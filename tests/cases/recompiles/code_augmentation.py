"""{"compiles": 2, "recompiles": [{"cause": "new-code"}]}"""

import random

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chance = random.Random(3)
    for _ in range(8):
        x = torch.randn(8, 16).to(device)
        with torch_xla.step():  # site
            if chance.random() < 0.5:
                x = x.flip(-1)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
