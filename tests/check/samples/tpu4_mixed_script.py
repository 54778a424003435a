"""Several ways to train in one file: one of them says nothing of the others."""

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, loader, every):
        self.accelerator = Accelerator()
        self.model, self.loader = self.accelerator.prepare(model, loader)
        self.every = every

    def train(self):
        for step, batch in enumerate(self.loader):
            loss = self.model(**batch).loss
            self.accelerator.backward(loss)
            if step % self.every == 0 and self.accelerator.is_main_process:
                self.evaluate(batch)  # TPU406: `self.evaluate` contains the collective
            if step % self.every == 0:
                self.evaluate(batch)  # ok: TPU406
        self.save()

    def evaluate(self, batch):
        return self.accelerator.gather_for_metrics(self.model(**batch).logits)  # ok: TPU406

    def save(self):
        if self.accelerator.is_main_process:
            torch.save(self.model.state_dict(), "model.pt")  # ok: TPU408
            self.accelerator.wait_for_everyone()  # TPU406: `self.accelerator.wait_for_everyone`


def train_fn(index, flags):
    device = xm.xla_device()
    sampler = DistributedSampler(flags["data"], num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
    train_loader = DataLoader(flags["data"], batch_size=32, sampler=sampler, drop_last=True)  # ok: TPU407
    net = nn.Linear(3, 4).to(device).train()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(flags["epochs"]):
        loader = pl.ParallelLoader(train_loader, [device]).per_device_loader(device)
        for data, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(data), targets).backward()
            xm.optimizer_step(optimizer)  # ok: TPU405
        if index == 0:
            xm.rendezvous("epoch")  # TPU406: under `index == 0`
    if xm.is_master_ordinal(local=False):
        torch.save(net.state_dict(), "net.pt")  # ok: TPU408
    xm.save(net.state_dict(), "net.pt", master_only=False)  # TPU408: `xm.save` runs on every rank
    xm.save(net.state_dict(), f"net-{index}.pt", master_only=False)  # ok: TPU408
    torch.save(optimizer.state_dict(), "optimizer.pt")  # TPU408: `torch.save` runs on every rank


def map_fn(index, flags):
    # Started by a launcher that is not in this file, as xla_spawn.py starts a script's _mp_fn.
    device = xm.xla_device()
    loader = DataLoader(flags["data"], batch_size=32, shuffle=True, drop_last=True)  # TPU407: gives every rank all
    net = nn.Linear(3, 4).to(device)  # ok: TPU401
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in pl.MpDeviceLoader(loader, device):
        F.cross_entropy(net(x), y).backward()
        optimizer.step()  # TPU405: without reducing the gradients
        optimizer.zero_grad()


def with_accelerate(model, loader):
    accelerator = Accelerator()
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()  # ok: TPU405
        optimizer.zero_grad()


FLAGS = {}
FLAGS["num_workers"] = 8
FLAGS["epochs"] = 2

if __name__ == "__main__":
    FLAGS["data"] = torch.load("data.pt")
    xmp.spawn(train_fn, args=(FLAGS,), nprocs=FLAGS["num_workers"], start_method="fork")  # TPU404: called with 8
    xmp.spawn(train_fn, args=(FLAGS,), nprocs=FLAGS["processes"], start_method="fork")  # ok: TPU404
