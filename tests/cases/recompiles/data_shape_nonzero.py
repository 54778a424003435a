"""{"compiles": 4, "recompiles": [
  {"cause": "data-shape"},
  {"cause": "data-shape"}
], "reads": [{"mentions": ["nonzero"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.randn(16, 4).to(device)
    for positive in (3, 4, 3, 6):
        x = (-torch.ones(8, 16)).index_fill(0, torch.arange(positive), 1.0).to(device)
        rows = (x.sum(dim=1) > 0).nonzero().squeeze(1)  # read
        score = (x.index_select(0, rows) @ w).pow(2).mean()
        torch_xla.sync()  # site
        del score
