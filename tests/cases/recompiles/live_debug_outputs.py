"""{"compiles": 2, "recompiles": [{"cause": "live-tensors"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    layers = [torch.nn.Linear(16, 16).to(device) for _ in range(3)]
    keep = []
    with torch.no_grad():
        for step in range(6):
            x = torch.randn(8, 16).to(device)
            for layer in layers:
                x = torch.relu(layer(x))
                if step >= 3:
                    keep.append(x)
            torch_xla.sync()  # site
