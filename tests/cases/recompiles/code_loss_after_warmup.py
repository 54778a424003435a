"""{"compiles": 2, "recompiles": [{"cause": "new-code"}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.randn(8, 4).to(device)
    for step in range(6):
        x = torch.randn(8, 16).to(device)
        loss_function = torch.nn.functional.l1_loss if step < 2 else torch.nn.functional.mse_loss
        optimizer.zero_grad()
        loss_function(model(x), target).backward()
        xm.optimizer_step(optimizer, barrier=True)  # site
