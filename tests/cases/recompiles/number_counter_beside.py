"""{"compiles": 3, "recompiles": [
  {"cause": "python-number", "mentions": ["width is now 5, before 4"]},
  {"cause": "python-number", "mentions": ["width is now 6, before 5"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    crops = 3
    model = torch.nn.Linear(16, 16).to(device)
    x = torch.randn(8, 16).to(device)
    torch_xla.sync()  # site before
    for width in (4, 5, 6):
        if crops < 100:
            crops += 1
        y = model(x)[:, :width].pow(2).mean()
        torch_xla.sync()  # site
        del y
