"""{"compiles": 5, "recompiles": [
  {"cause": "python-number", "mentions": ["single items", "`row` is now 1, before 0", "found = found.cpu()"]},
  {"cause": "python-number", "mentions": ["single items", "`row` is now 2, before 1", "found = found.cpu()"]},
  {"cause": "python-number", "mentions": ["single items", "`row` is now 3, before 2", "found = found.cpu()"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    digits = torch.tensor([[0, 0], [1, 0], [2, 0], [3, 0]]).to(device)
    torch_xla.sync()  # site
    found = digits + digits.flip(1)
    largest = found.amax(1).tolist()  # read
    for row in range(found.size(0)):
        print(largest[row], found[row].tolist())  # read
