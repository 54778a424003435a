"""{"compiles": 4, "recompiles": [
  {"cause": "early-read", "mentions": ["several values"]}, {"cause": "early-read", "mentions": ["several values"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.Linear(4, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 16).to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
        print([parameter.norm().item() for parameter in model.parameters()])  # site
