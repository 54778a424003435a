"""A script for a GPU, which has nothing to do with XLA: nothing is said of it."""

import torch
from torch.cuda.amp import GradScaler, autocast

model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()  # ok: TPU502


def train(loader):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with autocast():  # ok: TPU502
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.half()  # ok: TPU503
