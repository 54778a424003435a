"""{"compiles": 3, "recompiles": [
  {"cause": "new-code", "normal": true, "mentions": ["adds to gradients"]},
  {"cause": "new-code", "normal": true, "mentions": ["this graph has", "share no tensor", "f32[4,16]"]}
]}"""

import torch
import torch_xla


def fit(model, steps, momentum=0.0):
    device = torch_xla.device()
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 16).to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
        if momentum:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.grad *= momentum
        else:
            optimizer.zero_grad()


def train():
    first = torch.nn.Linear(16, 4)
    fit(first, 3, momentum=0.9)
    first.eval()
    fit(torch.nn.Linear(16, 4), 3)
