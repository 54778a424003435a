"""Hand-written loops of several ranks, and what each rank sees of the data."""

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets

data = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
shared_loader = DataLoader(data, batch_size=32, drop_last=True)  # TPU407: The DataLoader over `data` gives every rank all of the data.
host_loader = DataLoader(data, batch_size=32, drop_last=True)  # ok: TPU407


def fit(model, loader, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in pl.MpDeviceLoader(loader, device):
        F.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)


def _mp_shuffled(index):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    train_set = datasets.MNIST("data", train=True)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)  # TPU407: over `train_set`
    fit(model, train_loader, device)
    fit(model, DataLoader(data, batch_size=32, drop_last=True), device)  # TPU407: over `data`
    fit(model, shared_loader, device)
    sampled = DataLoader(data, batch_size=32, sampler=RandomSampler(data), drop_last=True)  # TPU407: gives every rank
    fit(model, sampled, device)
    plain = DataLoader(dataset=data, batch_size=32, sampler=None, drop_last=True)  # TPU407: gives every rank all
    fit(model, plain, device)
    fit(model, helper_loader(data), device)


def _mp_in_place(index):
    device = torch_xla.device()
    loader = pl.MpDeviceLoader(DataLoader(TensorDataset(torch.ones(8, 16), torch.ones(8)), 8), device)  # TPU407: over `TensorDataset
    fit(torch.nn.Linear(16, 4).to(device), loader, device)


def helper_loader(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=2, drop_last=True)  # TPU407: over `dataset`


def _mp_notebook(index, epochs):
    device = xm.xla_device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, 32, True, drop_last=True)  # TPU407: all of the data
    for epoch in range(epochs):
        for x, y in loader:
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            xm.optimizer_step(optimizer, barrier=True)


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.ones(16), 1


def _mp_sampled(index):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    train_sampler = DistributedSampler(data, num_replicas=xr.world_size(), rank=xr.global_ordinal())
    train_loader = DataLoader(data, batch_size=32, sampler=train_sampler, drop_last=True)  # ok: TPU407
    fit(model, train_loader, device)
    sampler = None
    if xr.world_size() > 1:
        sampler = DistributedSampler(data, num_replicas=xr.world_size(), rank=index)
    fit(model, DataLoader(data, batch_size=32, sampler=sampler, drop_last=True), device)  # ok: TPU407
    own = Subset(data, range(index, len(data), xr.world_size()))
    fit(model, DataLoader(own, batch_size=32, drop_last=True), device)  # ok: TPU407
    fit(model, DataLoader(Stream(), batch_size=32, drop_last=True), device)  # ok: TPU407
    test_set = datasets.MNIST("data", train=False)
    test_loader = DataLoader(test_set, batch_size=32, drop_last=True)  # ok: TPU407
    for x, y in pl.MpDeviceLoader(test_loader, device):
        print(model(x).shape)


def _mp_alone(index):
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    fit(model, DataLoader(data, batch_size=32, shuffle=True, drop_last=True), device)  # ok: TPU407


def not_launched():
    device = torch_xla.device()
    fit(torch.nn.Linear(16, 4).to(device), host_loader, device)
    fit(torch.nn.Linear(16, 4).to(device), DataLoader(data, 32, drop_last=True), device)  # ok: TPU407


if __name__ == "__main__":
    xmp.spawn(_mp_shuffled)
    xmp.spawn(_mp_notebook, args=(2,), start_method="fork")
    xmp.spawn(_mp_sampled)
    torch_xla.launch(_mp_in_place)
    xmp.spawn(_mp_alone, nprocs=1)
    not_launched()
