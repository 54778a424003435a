"""{"compiles": 3, "recompiles": [{"cause": "new-code", "mentions": ["which of the tensors", "torch_xla.sync()"]}]}"""

import copy

import torch
import torch_xla


def train():
    device = torch_xla.device()
    policy = torch.nn.Linear(4, 2).to(device)
    target = copy.deepcopy(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    torch_xla.sync()  # site
    for episode in range(3):
        for t in range(0 if episode else 8, 12):
            x = torch.randn(8, 4).to(device)
            with torch.no_grad():
                wanted = target(x) + 0.5
            optimizer.zero_grad()
            (policy(x) - wanted).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
        print("steps:", t + 1)
        with torch.no_grad():
            for kept, trained in zip(target.parameters(), policy.parameters(), strict=True):
                kept.copy_(trained)
