"""{"compiles": 4, "recompiles": [
  {"cause": "python-number", "mentions": ["position"]}, {"cause": "python-number"}, {"cause": "python-number"}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    with torch.no_grad():
        w = torch.randn(8, 8).to(device)
        cache = torch.zeros(4, 8).to(device)
        token = torch.randn(8).to(device)
        for position in range(4):
            token = torch.tanh(w @ token)
            cache[position] = token
            torch_xla.sync()  # site
