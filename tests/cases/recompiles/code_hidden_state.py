"""{"compiles": 2, "recompiles": [{"cause": ["new-code", "live-tensors"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.GRU(4, 8, batch_first=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hidden = None
    for _ in range(5):
        output, hidden = model(torch.randn(2, 6, 4).to(device), hidden)
        hidden = hidden.detach()
        optimizer.zero_grad()
        output.pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
