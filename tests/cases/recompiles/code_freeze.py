"""{"compiles": 2, "recompiles": [{"cause": ["new-code", "mode-switch"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    backbone, head = torch.nn.Linear(16, 16).to(device), torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for epoch in range(2):
        backbone.requires_grad_(epoch > 0)
        for _ in range(3):
            x = torch.randn(8, 16).to(device)
            optimizer.zero_grad()
            head(torch.relu(backbone(x))).pow(2).mean().backward()
            xm.optimizer_step(optimizer, barrier=True)  # site
