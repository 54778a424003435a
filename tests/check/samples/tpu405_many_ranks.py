"""Workers of several ranks: gradients have to be reduced."""

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, DistributedSampler


def make_loader(dataset):
    sampler = DistributedSampler(dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal())
    return DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)


def _mp_plain(index, dataset):
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in pl.MpDeviceLoader(make_loader(dataset), device):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # TPU405: `optimizer.step()` runs in several processes without reducing the gradients.
        optimizer.zero_grad()


def _mp_sync(index, dataset):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in make_loader(dataset):
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()  # TPU405: without reducing the gradients
        torch_xla.sync()


def _mp_xla(index, dataset):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in pl.MpDeviceLoader(make_loader(dataset), device):
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)  # ok: TPU405


def _mp_by_hand(index, dataset):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in pl.MpDeviceLoader(make_loader(dataset), device):
        F.cross_entropy(model(x), y).backward()
        xm.reduce_gradients(optimizer)
        optimizer.step()  # ok: TPU405


def _one_process(index, dataset):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(dataset, batch_size=32, drop_last=True):
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()  # ok: TPU405
        torch_xla.sync()


if __name__ == "__main__":
    dataset = torch.load("data.pt")
    xmp.spawn(_mp_plain, args=(dataset,))
    torch_xla.launch(_mp_sync, args=(dataset,))
    xmp.spawn(_mp_xla, args=(dataset,))
    xmp.spawn(_mp_by_hand, args=(dataset,))
    xmp.spawn(_one_process, args=(dataset,), nprocs=1)
