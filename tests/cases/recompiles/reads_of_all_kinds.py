"""{"compiles": 7, "recompiles": [], "reads": [
  {"mentions": ["tolist"]},
  {"mentions": ["float"]},
  {"mentions": ["numpy"]},
  {"mentions": ["print"]},
  {"mentions": ["int"]},
  {"mentions": ["assert"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.ones(4, 4).to(device)
    for _ in range(4):
        x = torch.ones(4).to(device)
        first = (w @ x).tolist()  # read
        second = float((w @ x).mean())  # read
        third = (w @ x * 3).cpu().numpy()  # read
        print((w + x).sum())  # read
        fourth = int((w * x).argmax())  # read
        assert (x + 2).min() > 0  # read
        result = (w * x).sum() + fourth
        torch_xla.sync()  # site
        del first, second, third, result
