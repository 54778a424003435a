"""{"compiles": 5, "recompiles": [
  {"cause": "no-sync"},
  {"cause": "no-sync"},
  {"cause": "no-sync"}
], "reads": [{"mentions": ["item"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(step, loss.item())  # read
    torch_xla.sync()  # site
