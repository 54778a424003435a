"""{"compiles": 5, "recompiles": [
  {"cause": "python-number", "mentions": ["single items", "labels.tolist()"]},
  {"cause": "python-number", "mentions": ["single items"]}, {"cause": "early-read"}
], "reads": [{"mentions": ["device-to-host"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    weight = torch.randn(3, 2).to(device)
    seen = []
    for _ in range(3):
        inputs, labels = torch.randn(3, 3).to(device), torch.randint(0, 2, (3,)).to(device)
        weight = torch.tanh(inputs @ weight)
        torch_xla.sync()  # site
        for label in labels:
            seen.append(int(label))  # read labels
