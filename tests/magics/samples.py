"""Cells that the tests of the magics run: a small model, and a function that trains it on the XLA device."""

from __future__ import annotations

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 2)
before = model.weight.detach().clone()
"""

TRAIN = """
def train(model, steps=3, lr=0.1):
    import torch_xla
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device=device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    return float(loss.detach())
"""

FOREVER = """%%tpu_train model {options}
def forever(model):
    print("started", flush=True)
    while True:
        train(model, 5)
"""

# A worker whose data are loaded by two processes of its own.
LOADING = """%%tpu_train model{options}
def loads(model):
    import os
    from torch.utils.data import DataLoader
    class Rows:
        def __len__(self):
            return 10**9
        def __getitem__(self, i):
            if i == 8:
                print("loading", flush=True)
            return torch.ones(2)
    train(model)
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2):
        pass
"""

TRAINED = "not torch.equal(model.weight, before)"
"""True once trained weights have come home; False while they are byte for byte as they were."""

# What is registered stays in a kernel that tests share: it says nothing where the name `watched` is not there.
FORK = """
import os
watched = True
os.register_at_fork(before=lambda: "watched" in get_ipython().user_ns and print('FORKED', flush=True))
"""
