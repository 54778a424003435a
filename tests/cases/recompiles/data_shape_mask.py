"""{"compiles": 4, "recompiles": [
  {"cause": "data-shape"},
  {"cause": "data-shape"}
], "reads": [{"mentions": ["keep"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for missing in (2, 3, 2, 5):
        x = torch.randn(8, 16).to(device)
        labels = torch.randint(0, 4, (8,))
        labels[:missing] = -100
        labels = labels.to(device)
        keep = labels >= 0
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output[keep], labels[keep])  # read
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
