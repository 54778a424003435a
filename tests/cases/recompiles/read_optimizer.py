"""{"compiles": 14, "recompiles": [
  {"cause": "early-read", "mentions": ["LBFGS", "AdamW"], "at": "step"},
  {"cause": "early-read", "at": "step"}, {"cause": "early-read", "at": "step"},
  {"cause": "new-code", "mentions": ["LBFGS", "AdamW"], "at": "closure"},
  {"cause": "new-code", "mentions": ["LBFGS"], "at": "sync"},
  {"cause": "early-read", "at": "step"}, {"cause": "early-read", "at": "step"},
  {"cause": "early-read", "at": "step"}, {"cause": "early-read", "at": "step"},
  {"cause": "new-code", "mentions": ["LBFGS", "AdamW"], "at": "closure"},
  {"cause": "new-code", "mentions": ["LBFGS"], "at": "sync"}
], "reads": [
  {"mentions": ["device-to-host"], "at": "closure"}, {"mentions": ["LBFGS", "AdamW"], "at": "step"}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.nn.Parameter(torch.ones(4, 1).to(device))
    x = torch.arange(8.0).reshape(2, 4).to(device)
    optimizer = torch.optim.LBFGS([w], lr=0.1, max_iter=2)
    torch_xla.sync()

    def closure():
        optimizer.zero_grad()
        loss = (x @ w).pow(2).mean()
        print(loss.item())  # read closure
        loss.backward()
        torch_xla.sync()  # site sync
        return loss

    for _ in range(2):
        optimizer.step(closure)  # read step
        torch_xla.sync()  # site end
