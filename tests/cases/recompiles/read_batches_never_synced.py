"""{"compiles": 6, "recompiles": [
  {"cause": "no-sync"},
  {"cause": "no-sync"},
  {"cause": "no-sync"},
  {"cause": "no-sync"}
], "reads": [{"mentions": ["cpu", "torch_xla.sync()"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(10, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.randn(32, 10), torch.randint(0, 2, (32,))) for _ in range(5)]
    losses = []
    for x, y in loader:
        x, y = x.to(device), y.to(device)  # each takes the place in memory of the other, of the batch before
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu().numpy())  # read
    torch_xla.sync()  # site
