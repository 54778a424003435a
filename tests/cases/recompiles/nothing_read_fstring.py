"""{"compiles": 2, "recompiles": [], "reads": [{"mentions": ["loss"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


def report(step, loss):
    print(f"step {step}: loss {loss:.4f}")  # read


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if step % 4 == 0:
            report(step, loss)
        xm.optimizer_step(optimizer, barrier=True)  # site
