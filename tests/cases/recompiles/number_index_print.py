"""{"compiles": 4, "recompiles": [
  {"cause": "python-number", "mentions": ["single items", "`i` is now 1, before 0", "y = y.cpu()"]},
  {"cause": "python-number", "mentions": ["`i` is now 2, before 1", "y = y.cpu()"]}
]}"""

import torch
import torch_xla


def train():
    printed = 0
    x = torch.arange(3.0).to(torch_xla.device())
    torch_xla.sync()  # site
    y = x * 2
    wrong = (y < 100).cpu()  # read
    for i in range(y.size(0)):
        if wrong[i] and printed < 5:
            printed += 1
            print(f"{int(y[i])} is wrong")  # read
