"""{"compiles": 1, "recompiles": []}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def report(step, loss):
    print(f"step {step}: {loss.item():.3f}")


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        xm.add_step_closure(report, args=(step, loss.detach()))
        xm.mark_step()  # site
