"""{"compiles": 2, "recompiles": [], "reads": [{"mentions": ["shape that depends on values"]}]}"""

import torch
import torch_xla


def train():
    x = torch.ones(4, 4).to(torch_xla.device())
    torch_xla.sync()
    (x * 2).sum().item()  # site
    return [torch.nonzero(x * 3).shape]  # read
