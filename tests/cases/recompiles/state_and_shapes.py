"""{"compiles": 4, "recompiles": [
  {"cause": ["input-shape", "optimizer-state"], "mentions": ["9", "7"]},
  {"cause": "input-shape", "mentions": ["ids", "12"]},
  {"cause": ["optimizer-state", "input-shape"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Embedding(100, 8).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _epoch in range(2):
        for length in (7, 9, 12):
            ids = torch.randint(0, 100, (4, length)).to(device)
            optimizer.zero_grad()
            model(ids).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
