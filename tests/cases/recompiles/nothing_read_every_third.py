"""{"compiles": 2, "recompiles": [], "reads": [{"mentions": ["item"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        if step % 3 == 2:
            print(step, loss.item())  # read
        optimizer.step()
        torch_xla.sync()  # site
