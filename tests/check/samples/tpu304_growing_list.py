"""Tensors that pile up step after step, and lists that stay small."""

from collections import deque

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from accelerate import Accelerator

device = torch_xla.device()


def stacked(model, loader, optimizer):
    losses, kept, numbers, recent = [], [], [], deque(maxlen=16)
    history = {}
    total = torch.zeros((), device=device)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # TPU304: torch.stack(losses)
        running = torch.stack(losses).mean()
        kept.append(loss)  # TPU304: keeps loss of every step
        history[step] = loss  # TPU304: history keeps loss
        numbers.append(loss.detach())  # ok: TPU304
        recent.append(loss.detach())  # ok: TPU304
        average = sum(recent) / len(recent)
        total += loss.detach()  # ok: TPU304
        xm.mark_step()
    return running, average, total, torch.stack(numbers).mean()


def summed(model, loader):
    accelerator = Accelerator()
    seen = []
    window = []
    for batch in loader:
        outputs = model(**batch)
        accelerator.backward(outputs.loss)
        seen += [outputs.loss.detach()]  # TPU304: sum(seen)
        mean = sum(seen) / len(seen)
        pieces = []
        pieces.append(outputs.loss)  # ok: TPU304
        pieces.append(mean)  # ok: TPU304
        window.append(torch.stack(pieces).sum().detach())  # ok: TPU304
        if len(window) == 4:
            mean = torch.stack(window).mean()
            window.clear()


def with_outputs(model, loader, optimizer):
    log = {"loss": [], "rate": []}
    pairs = []
    for step, batch in enumerate(loader):
        outputs = model(**batch.to(device))
        outputs.loss.backward()
        optimizer.step()
        torch_xla.sync()
        pairs.append((step, outputs.loss))  # TPU304: outputs.loss
        log["loss"].append(outputs.loss)  # TPU304: outputs.loss
        log["rate"].append(0.1)  # ok: TPU304
        if step % 100 == 0:
            pairs.append((step, outputs.loss))  # ok: TPU304


def evaluate(model, loader):
    predictions = []
    everything = None
    with torch.no_grad():
        for x in loader:
            logits = model(x.to(device))
            predictions.append(logits.argmax(dim=-1))  # ok: TPU304
            if everything is None:
                everything = logits
            else:
                everything = torch.cat([everything, logits])  # TPU304: everything grows
            torch_xla.sync()
    return torch.cat(predictions), everything


def generate(model, ids, length):
    model = model.to(device)
    for _ in range(length):
        logits = model(ids).logits
        following = logits[:, -1:].argmax(dim=-1)
        ids = torch.cat([ids, following], dim=1)  # TPU304: ids grows
    return ids


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)  # TPU304: sum(self.values)
        return sum(self.values) / len(self.values)


def with_meter(model, loader, optimizer):
    meter = Meter()
    for x in loader:
        loss = model(x.to(device)).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        print(meter.add(loss.detach()).shape)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        states = []
        for layer in self.layers:
            x = layer(x)
            states.append(x)  # ok: TPU304
        parts = x
        for state in states:
            parts = torch.cat([parts, state], dim=-1)  # ok: TPU304
        return torch.stack(states).sum() + parts.sum()


def rebound_in_each_step(model, optimizer, loader, noisy):
    for step, batch in enumerate(loader):
        with torch.autocast("xla", dtype=torch.bfloat16):
            x, y = batch["x"].to(device), batch["y"].to(device)
            if noisy:
                x = torch.cat([x, torch.randn_like(x)])  # ok: TPU304
                y = torch.cat([y, y])  # ok: TPU304
            if step % 2:
                tokens = batch["a"].to(device)
            else:
                tokens = batch["b"].to(device)
            if noisy:
                tokens = torch.cat([tokens, tokens], dim=1)  # ok: TPU304
            loss = model(x, tokens).sub(y).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


def decoded_in_each_step(model, optimizer, loader):
    for batch in loader:
        ids = batch["ids"].to(device)
        for _ in range(4):  # the same shapes in each step
            ids = torch.cat([ids, model(ids).argmax(-1)], dim=1)  # ok: TPU304
        loss = model(ids).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


class Up(torch.nn.Module):
    def __init__(self, blocks, skips):
        super().__init__()
        self.blocks, self.skips, self.checkpointed = torch.nn.ModuleList(blocks), torch.nn.ModuleList(skips), False

    def forward(self, x, earlier, with_skips):
        for block, skip in zip(self.blocks, self.skips):
            x = torch.cat([x, earlier[-1]], dim=1)  # ok: TPU304
            if self.checkpointed:
                x = torch.utils.checkpoint.checkpoint(block, x)
            else:
                x = block(x)
            if with_skips:
                earlier = torch.cat([earlier, skip(x)], dim=1)  # ok: TPU304
            if with_skips:
                earlier = block(earlier)
        return x
