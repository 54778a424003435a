"""{"compiles": 5, "recompiles": [
  {"cause": "python-number", "mentions": ["step"]}, {"cause": "python-number"},
  {"cause": "python-number"}, {"cause": "python-number"}
]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16).to(device)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.roll(x, step, dims=0)).pow(2).mean().backward()
        optimizer.step()
        xm.mark_step()  # site
