"""{"compiles": 4, "recompiles": [
  {"cause": "python-number", "mentions": ["3", "2"]}, {"cause": "python-number"}, {"cause": "python-number"}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16).to(device)
    for power in (2, 3, 4, 5, 2, 3):
        optimizer.zero_grad()
        loss = model(x).pow(power).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
