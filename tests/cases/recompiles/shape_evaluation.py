"""{"compiles": 2, "recompiles": [{"cause": ["input-shape", "mode-switch"], "mentions": ["64"]}]}"""

import torch
import torch_xla


def run_step(model, x, optimizer=None):
    loss = model(x).pow(2).mean()
    if optimizer is not None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch_xla.sync()  # site
    return loss


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(2):
        for _ in range(3):
            run_step(model, torch.randn(16, 16).to(device), optimizer)
        with torch.no_grad():
            run_step(model, torch.randn(64, 16).to(device))
