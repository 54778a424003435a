"""{"compiles": 7, "recompiles": [
  {"cause": ["data-branch", "early-read"], "at": "condition"},
  {"cause": ["data-branch", "early-read"], "at": "condition"},
  {"cause": "data-branch", "at": "end"},
  {"cause": ["data-branch", "early-read"], "at": "condition"},
  {"cause": "data-branch", "at": "end"}
], "reads": [{"mentions": ["max"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    for start in (1.5, 1.5, 3.0, 7.0):
        x = torch.full((4, 4), start).to(device)
        while x.abs().max() > 1:  # read condition
            x = x / 2
        y = x.sum()
        torch_xla.sync()  # site end
        del y
