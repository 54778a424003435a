"""{"compiles": 2, "recompiles": [{"cause": "mode-switch", "mentions": ["grad"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def one_pass(model, x, optimizer):
    loss = model(x).pow(2).mean()
    if torch.is_grad_enabled():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    xm.mark_step()  # site


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(3):
        for _ in range(2):
            one_pass(model, torch.randn(8, 16).to(device), optimizer)
        with torch.no_grad():
            one_pass(model, torch.randn(8, 16).to(device), optimizer)
