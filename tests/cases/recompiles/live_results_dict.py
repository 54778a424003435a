"""{"compiles": 4, "recompiles": [{"cause": "live-tensors"}, {"cause": "live-tensors"}, {"cause": "live-tensors"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    w = torch.randn(16, 4).to(device)
    x = torch.randn(8, 16).to(device)
    for epoch in range(4):
        results = {}
        for batch in range(epoch + 1):
            results[batch] = torch.tanh(x @ w)
        torch_xla.sync()  # site
