"""{"compiles": 4, "recompiles": [
  {"cause": "data-shape"}, {"cause": "data-shape"}
], "reads": [{"mentions": ["where"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.nn.Parameter(torch.randn(16, 4).to(device))
    for hot in (2, 3, 2, 6):
        x = torch.ones(8, 16).index_fill(0, torch.arange(hot), 5.0).to(device)
        (rows,) = torch.where(x.mean(dim=1) > 2)  # read
        loss = (x[rows] @ w).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
        w.grad = None
        torch_xla.sync()  # site
