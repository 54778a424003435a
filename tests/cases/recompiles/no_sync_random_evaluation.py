"""{"compiles": 4, "recompiles": [
  {"cause": "no-sync", "mentions": ["andom", "torch_xla.sync()"]}, {"cause": "no-sync", "mentions": ["andom"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8).to(device)).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
        total = 0
        with torch.no_grad():
            for _ in range(3):  # each draw adds to the random state, which nothing but a sync computes
                x = torch.randn(4, 8).to(device)
                total += (model(x) + torch.randn(4, 3, device=device)).mean().item()  # read
        print(total)
