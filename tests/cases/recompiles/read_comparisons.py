"""{"compiles": 5, "recompiles": [], "reads": [
  {"mentions": ["torch.allclose"]},
  {"mentions": ["torch.equal"]},
  {"mentions": ["x.equal"]},
  {"mentions": ["x.allclose"]},
  {"mentions": ["is_nonzero"]},
  {"mentions": ["FloatTensor"]},
  {"mentions": ["copy_"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    x = torch.ones(4, 4).to(device)
    kept = torch.zeros(4, 4)
    for _ in range(3):
        y = torch.ones(4, 4).to(device)
        found = [torch.allclose(x, y * 2)]  # read
        found += [torch.equal(input=x, other=y * 3)]  # read
        found += [x.equal(y * 4)]  # read
        found += [x.allclose(y * 5)]  # read
        found += [torch.is_nonzero(y.sum())]  # read
        found += [(y * 6).type(torch.FloatTensor).is_xla]  # read
        kept.copy_(other=y * 7)  # read
        result = y.mean()
        torch_xla.sync()  # site
        assert found == [False, False, False, False, True, False] and result.type() and kept[0, 0] == 7
        del result
