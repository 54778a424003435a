"""{"compiles": 5, "recompiles": [
  {"cause": "new-code", "mentions": ["average"], "normal": true},
  {"cause": "new-code", "mentions": ["average"], "normal": true}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(8, 4).to(device)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch_xla.sync()  # site
    for epoch in range(5):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8).to(device)).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
        if epoch > 1:
            averaged.update_parameters(model)
    torch_xla.sync()  # site
