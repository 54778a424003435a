"""{"compiles": 3, "recompiles": [
  {"cause": "python-number", "mentions": ["beta", "0.25"]},
  {"cause": "python-number", "mentions": ["beta", "1"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(7):
        beta = min(1.0, step / 4)
        mean, log_variance = model(torch.randn(8, 16).to(device)).chunk(2, dim=1)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        loss = mean.pow(2).mean() + beta * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
