"""{"compiles": 2, "recompiles": [{"cause": "mode-switch", "mentions": ["autocast"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=step >= 2):
            loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
