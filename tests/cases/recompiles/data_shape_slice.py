"""{"compiles": 4, "recompiles": [
  {"cause": ["data-shape", "python-number"]},
  {"cause": ["data-shape", "python-number"]}
], "reads": [{"mentions": ["item"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for real in (5, 7, 5, 8):
        x = torch.randn(8, 16).to(device)
        mask = (torch.arange(8) < real).to(device)
        n = mask.sum()
        kept = x[: n.item()]  # read
        optimizer.zero_grad()
        loss = model(kept).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
