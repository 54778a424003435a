"""{"compiles": 3, "recompiles": [{"cause": "early-read", "at": "value"}], "reads": [{"mentions": ["item"]}]}"""

import torch
import torch_xla


def value(tensor):
    return tensor.detach().item()  # read value


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.randint(0, 4, (8,)).to(device)
    for _ in range(4):
        output = model(torch.randn(8, 16).to(device))
        loss = torch.nn.functional.cross_entropy(output, y)
        print(value(loss), value((output.argmax(dim=1) == y).sum()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
