"""{"compiles": 2, "recompiles": [{"cause": "live-tensors"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16).to(device)
    first = None
    for _ in range(6):
        output = model(x)
        loss = output.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if first is None:
            first = output
        del output
        torch_xla.sync()  # site
