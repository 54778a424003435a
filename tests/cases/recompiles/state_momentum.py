"""{"compiles": 2, "recompiles": [{"cause": "optimizer-state"}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        xm.optimizer_step(optimizer, barrier=True)  # site
