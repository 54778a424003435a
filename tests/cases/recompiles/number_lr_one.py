"""{"compiles": 2, "recompiles": [{"cause": "python-number", "mentions": ["lr", "0.4"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.nn.Parameter(torch.randn(16, 4).to(device))
    for step in range(6):
        lr = min(1.0, 0.4 + 0.2 * step)
        x = torch.randn(8, 16).to(device)
        loss = (x @ w).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w -= lr * w.grad
        w.grad = None
        torch_xla.sync()  # site
