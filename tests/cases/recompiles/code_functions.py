"""{"compiles": 3, "recompiles": [{"cause": "new-code"}, {"cause": "new-code"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    activations = [torch.relu, torch.tanh, torch.sigmoid]
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        activations[step % 3](model(x)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
