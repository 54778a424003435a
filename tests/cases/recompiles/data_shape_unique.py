"""{"compiles": 4, "recompiles": [
  {"cause": "data-shape", "mentions": ["7", "4"]}, {"cause": "data-shape", "mentions": ["5"]}
], "reads": [{"mentions": ["unique"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    table = torch.nn.Embedding(50, 8).to(device)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for different in (4, 4, 7, 5):
        ids = (torch.arange(24) % different).to(device) + 1
        used = torch.unique(ids)  # read
        optimizer.zero_grad()
        loss = table(used).pow(2).sum()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)  # site
