"""{"compiles": 4, "recompiles": [
  {"cause": "new-code", "mentions": ["`net`", "another model"], "normal": true},
  {"cause": "new-code", "mentions": ["`net`", "another model"], "normal": true},
  {"cause": "new-code", "mentions": ["`net`", "another model"], "normal": true}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    for hidden, depth in ((4, 0), (8, 0), (16, 0), (16, 1)):
        deeper = [layer for _ in range(depth) for layer in (torch.nn.Linear(hidden, hidden), torch.nn.ReLU())]
        layers = torch.nn.Linear(4, hidden), torch.nn.ReLU(), *deeper, torch.nn.Linear(hidden, 2)
        net = torch.nn.Sequential(*layers).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 4).to(device)).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
