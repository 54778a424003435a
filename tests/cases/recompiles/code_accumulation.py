"""{"compiles": 3, "recompiles": [
  {"cause": "new-code", "normal": true}, {"cause": "new-code", "normal": true}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        x = torch.randn(8, 16).to(device)
        loss = model(x).pow(2).mean() / 4
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        torch_xla.sync()  # site
