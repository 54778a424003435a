"""{"compiles": 4, "recompiles": [
  {"cause": "new-code", "at": "step", "mentions": ["without a sync"], "normal": true}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.randn(4, 8).to(device)
    torch_xla.sync()  # site
    samples = []
    for step in range(8):
        x = torch.randn(16, 8).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site step
        if step % 3 == 0:  # the forward pass counts in the BatchNorm's statistics, which the next step computes
            with torch.no_grad():
                samples.append(model(noise).cpu())  # read
