"""{"compiles": 3, "recompiles": [{"cause": "data-branch"}], "reads": [{"mentions": ["norm"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def clip(parameters, limit):
    norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
    if norm.item() > limit:  # read
        for parameter in parameters:
            parameter.grad.mul_(limit / norm)


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for scale in (100.0, 100.0, 1e-3, 100.0, 1e-3):
        x = torch.full((8, 4), scale).to(device)
        optimizer.zero_grad()
        (model(x) - 5 * scale).pow(2).mean().backward()
        clip(list(model.parameters()), 1.0)
        xm.optimizer_step(optimizer)
        xm.mark_step()  # site
