"""Hand-written XLA loops: what runs the graph, and what does not."""

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from batches import unknown_batches
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))


def never_runs():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=32, drop_last=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()  # TPU405: `optimizer.step()` is called in a loop that never runs the graph.


def never_runs_in_epochs(epochs):
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    opt = torch.optim.AdamW(model.parameters())
    loader = DataLoader(data, batch_size=32, drop_last=True)
    for epoch in range(epochs):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            if (step + 1) % 4 == 0:
                opt.step()  # TPU405: `opt.step()` is called in a loop
                opt.zero_grad()


def steps_in_a_function():
    device = torch.device("xla")
    model = torch.nn.Linear(16, 4).to(xm.xla_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def one_step(x):
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()  # TPU405: never runs the graph

    for _ in range(100):
        one_step(torch.randn(8, 16))


def without_barrier():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=32, drop_last=True):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        xm.optimizer_step(optimizer)  # TPU405: has no barrier, and nothing else in the loop runs the graph
        optimizer.zero_grad()


def with_a_barrier_that_is_off():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        model(torch.randn(8, 16, device=device)).pow(2).mean().backward()
        xm.optimizer_step(optimizer, barrier=False)  # TPU405: has no barrier


def runs_with_sync():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=32, drop_last=True):
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()  # ok: TPU405
        optimizer.zero_grad()
        torch_xla.sync()


def runs_with_mark_step_elsewhere():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        model(torch.randn(8, 16, device=device)).pow(2).mean().backward()
        xm.optimizer_step(optimizer)  # ok: TPU405
        end_of_step(optimizer)


def end_of_step(optimizer):
    optimizer.zero_grad()
    xm.mark_step()


def runs_with_barrier():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=32, drop_last=True):
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        xm.optimizer_step(optimizer, barrier=True)  # ok: TPU405


def runs_with_a_device_loader():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pl.MpDeviceLoader(DataLoader(data, batch_size=32, drop_last=True), device)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)  # ok: TPU405
    for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # ok: TPU405


def syncs_twice():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pl.MpDeviceLoader(DataLoader(data, batch_size=32, drop_last=True), device)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer, barrier=True)  # TPU405: `barrier=True` syncs in each step, and the `MpDeviceLoader` syncs again.
    for step in range(10):
        model(torch.randn(8, 16, device=device)).pow(2).mean().backward()
        xm.optimizer_step(optimizer, True)  # TPU405: and `xm.mark_step()` in the same loop syncs again
        xm.mark_step()


def in_a_step_context():
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        with torch_xla.step():
            model(torch.randn(8, 16, device=device)).pow(2).mean().backward()
            optimizer.step()  # ok: TPU405
    step_fn = torch_xla.compile(compiled_step)
    for step in range(10):
        step_fn(model, torch.randn(8, 16, device=device), optimizer)


@torch_xla.compile
def decorated_step(model, x, optimizer):
    model(x).pow(2).mean().backward()
    optimizer.step()  # ok: TPU405


def compiled_step(model, x, optimizer):
    model(x).pow(2).mean().backward()
    optimizer.step()  # ok: TPU405


def loops_over_what_is_given(model, loader, optimizer):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)  # ok: TPU405


def moves_its_batches(model, loader, optimizer):
    device = xm.xla_device()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)  # TPU405: has no barrier
    for step, batch in enumerate(unknown_batches()):
        loss = model(batch["x"].to(device)).mean()
        loss.backward()
        optimizer.step()  # TPU405: never runs the graph
    for batch in unknown_batches():
        model(batch["x"]).mean().backward()
        optimizer.step()  # ok: TPU405
