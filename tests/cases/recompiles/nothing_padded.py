"""{"compiles": 1, "recompiles": []}"""

import torch
import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def collate(rows):
    padded = torch.zeros(len(rows), 32, dtype=torch.long)
    for row, ids in enumerate(rows):
        padded[row, : len(ids)] = ids
    return padded


def train():
    device = torch_xla.device()
    model = torch.nn.Embedding(100, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [torch.randint(0, 100, (5 + (7 * i) % 25,)) for i in range(34)]
    loader = torch.utils.data.DataLoader(rows, batch_size=8, drop_last=True, collate_fn=collate)
    for ids in MpDeviceLoader(loader, device):  # site
        optimizer.zero_grad()
        model(ids).pow(2).mean().backward()
        optimizer.step()
