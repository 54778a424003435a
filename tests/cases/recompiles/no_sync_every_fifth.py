"""{"compiles": 4, "recompiles": [
  {"cause": "no-sync", "mentions": ["torch_xla.sync()", "optimizer.step()"]},
  {"cause": "no-sync"},
  {"cause": "no-sync"}
], "reads": [{"mentions": ["item", "torch_xla.sync()"]}]}"""

import torch


def train():
    device = "xla"
    model = torch.nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(16):
        x, y = torch.randn(16, 8).to(device), torch.randint(0, 4, (16,)).to(device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(step, loss.item())  # read # site
