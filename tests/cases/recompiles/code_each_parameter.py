"""{"compiles": 5, "recompiles": [
  {"cause": "new-code", "at": "check"}, {"cause": "new-code", "at": "check"}, {"cause": "new-code", "at": "check"}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 1, 8, 8, device=device)).square().mean().backward()
        optimizer.step()
        torch_xla.sync()  # site step
        for value in model.parameters():
            if (torch.isinf(value) | torch.isnan(value)).any():  # site check
                raise ValueError("not finite")
