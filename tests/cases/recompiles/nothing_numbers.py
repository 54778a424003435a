"""{"compiles": 1, "recompiles": []}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    dropout = torch.nn.Dropout(0.1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), dropout, torch.nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.randint(0, 4, (8,)).to(device)
    for step in range(8):
        dropout.p = 0.1 + 0.05 * step
        smoothing = 0.02 * (step + 1)
        temperature = 2.5 - 0.1 * step
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x) / temperature, y, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
