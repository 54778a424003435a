"""{"compiles": 3, "recompiles": [
  {"cause": "new-code", "at": "evaluation", "mentions": ["correct"], "normal": true}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for _ in range(3):
            x, y = torch.randn(16, 8).to(device), torch.randint(0, 3, (16,)).to(device)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            torch_xla.sync()  # site
        correct = 0
        for step in range(4):
            x, y = torch.randn(16, 8).to(device), torch.randint(0, 3, (16,)).to(device)
            with torch.no_grad():
                correct += (model(x).argmax(dim=1) == y).sum()
            torch_xla.sync()  # site evaluation
        print(epoch, correct.item())
