"""{"compiles": 3, "recompiles": [{"cause": "data-branch"}], "reads": [{"mentions": ["loss"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.nn.Parameter(torch.full((16, 1), 0.5).to(device))
    optimizer = torch.optim.SGD([w], lr=0.01)
    for scale in (0.1, 0.1, 3.0, 0.1, 3.0):
        x = torch.full((8, 16), scale).to(device)
        optimizer.zero_grad()
        loss = (x @ w).pow(2).mean()
        if loss > 1:  # read
            loss = loss.sqrt()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
