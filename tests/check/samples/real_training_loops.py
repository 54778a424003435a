"""Training loops in the forms of public scripts: a logger goes over the loader, the loss comes out of another file."""

import math
import sys
from collections.abc import Iterable

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm

from helpers import MetricLogger, NativeScaler, build_loss

device = xm.xla_device()


def train_one_epoch(model: torch.nn.Module, criterion: torch.nn.Module, data_loader: Iterable, optimizer, log):
    scaler = NativeScaler()
    for step, (samples, targets) in enumerate(log.log_every(data_loader, 20, "train")):
        samples, targets = samples.to(device), targets.to(device)
        loss = criterion(model(samples), targets)
        value = loss.item()  # TPU102: loss.item() reads the value of loss
        if not math.isfinite(value):
            sys.exit(1)
        scaler(loss, optimizer, parameters=model.parameters())
        xm.mark_step()
        if step % 20 == 0:
            log.update(loss=loss.item())  # ok: TPU102


def evaluate(model: torch.nn.Module, data_loader: Iterable):
    log = MetricLogger()
    for pictures, targets in log.log_every(data_loader, 10, "test"):
        pictures = [one.to(device) for one in pictures]  # ok: TPU102
        targets = [{key: value.to(device) for key, value in one.items()} for one in targets]  # ok: TPU102
        outputs = model(pictures)
        loss = F.cross_entropy(outputs, targets[0]["labels"])
        log.update(loss=loss.item())  # TPU102: loss.item() reads the value of loss


def overlap(boxes1, boxes2):
    assert (boxes1[:, 2:] >= boxes1[:, :2]).all()  # TPU101: (boxes1[:, 2:] >= boxes1[:, :2]).all()
    assert (boxes2[:, 2:] >= boxes2[:, :2]).all()  # TPU101: (boxes2[:, 2:] >= boxes2[:, :2]).all()
    return torch.max(boxes1[:, None, :2], boxes2[:, :2])


def clipped(model, loader, optimizer, log):
    for x, y in log.log_every(loader, 10):
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.item() if isinstance(norm, torch.Tensor) else norm  # TPU102: norm.item() reads the value of norm
        xm.optimizer_step(optimizer, barrier=True)
        print(f"norm {norm:.2f}")  # ok: TPU103


class Fitter:
    def __init__(self, model, config):
        self.model = model
        self.criterion = build_loss(config)

    def epoch(self, loader):
        total = 0.0
        for x, y in loader:
            loss = self.criterion(self.model(x.to(device)), y.to(device))
            loss.backward()
            total += loss.item()  # TPU102: loss.item() reads the value of loss
            xm.mark_step()
        return total


def checked(mask):
    rows = torch.nonzero(mask)  # TPU203: torch.nonzero(mask)
    assert torch.nonzero(mask).size(0) == 4, torch.nonzero(mask).size(0)  # TPU203: torch.nonzero(mask)
    return rows
