"""{"compiles": 1, "recompiles": []}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.01)
    for _ in range(10):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        xm.optimizer_step(optimizer, barrier=True)  # site
        scheduler.step()
