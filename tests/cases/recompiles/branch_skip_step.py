"""{"compiles": 3, "recompiles": [{"cause": "data-branch"}], "reads": [{"mentions": ["isfinite"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for value in (1.0, 2.0, float("inf"), 1.0):
        x = torch.full((8, 4), value).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if torch.isfinite(loss):  # read
            optimizer.step()
        torch_xla.sync()  # site
