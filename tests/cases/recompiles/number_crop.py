"""{"compiles": 3, "recompiles": [
  {"cause": "python-number", "mentions": ["width", "8", "4"]}, {"cause": "python-number"}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16).to(device)
    for epoch in range(6):
        width = 4 + 4 * (epoch // 2)
        optimizer.zero_grad()
        loss = model(x)[:, :width].pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
