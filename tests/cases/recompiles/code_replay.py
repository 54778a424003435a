"""{"compiles": 3, "recompiles": [
  {"cause": "new-code", "mentions": ["which of the tensors", "on the host"], "normal": false},
  {"cause": "new-code", "mentions": ["which of the tensors", "on the host"], "normal": false}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = [(torch.randn(1, 4).to(device), torch.randn(1, 4).to(device)) for _ in range(3)]
    for picked in ((0, 1, 2), (0, 0, 1), (2, 1, 0), (1, 1, 1)):
        states, following = zip(*[memory[place] for place in picked], strict=True)
        with torch.no_grad():
            wanted = model(torch.cat(following))
        optimizer.zero_grad()
        (model(torch.cat(states)) - wanted).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
