"""{"compiles": 1, "recompiles": []}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
        losses.append(loss.item())
        print(f"{step}: {sum(losses) / len(losses):.3f}", loss)
