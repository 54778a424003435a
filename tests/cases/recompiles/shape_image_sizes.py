"""{"compiles": 3, "recompiles": [
  {"cause": "input-shape", "mentions": ["images", "24", "16"]},
  {"cause": "input-shape", "mentions": ["images", "20"]}
]}"""

import torch
import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def batches():
    for size in (16, 16, 24, 20, 24, 16):
        yield torch.randn(4, 3, size, size), torch.randint(0, 5, (4,))


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in MpDeviceLoader(list(batches()), device):  # site
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
