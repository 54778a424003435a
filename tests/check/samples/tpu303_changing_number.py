"""Python numbers that change every step: in the graph, and sent as data."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn

device = torch_xla.device()
SIZES = [16, 24, 32]


def train(model, loader, optimizer):
    weight = torch.ones(16, 16).to(device)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        keep = 1 + step % 4
        best = torch.topk(x, keep, dim=1).values  # TPU303: keep
        turned = torch.roll(x, shifts=step, dims=0)  # TPU303: torch.roll
        lower = weight.tril(diagonal=step)  # TPU303: step
        power = (x.abs() + 1) ** (0.1 * step)  # TPU303: 0.1 * step
        row = weight[step % 16]  # TPU303: step % 16
        head = x[:, : 4 + step]  # TPU303: 4 + step
        weight[:, step] = 0.0  # TPU303: weight[:, step]
        noise = torch.zeros(4, keep, device=device)  # TPU303: torch.zeros(4, keep, device=device)
        first = torch.topk(x, 4, dim=1).values  # ok: TPU303
        scaled = x * step  # ok: TPU303
        shifted = x + 0.1 * step  # ok: TPU303
        cooled = F.softmax(x / (2.5 - 0.1 * step), dim=-1)  # ok: TPU303
        dropped = F.dropout(x, p=0.01 * step)  # ok: TPU303
        clamped = x.clamp(max=step + 2.0)  # ok: TPU303
        filled = torch.full((4, 4), float(step), device=device)  # ok: TPU303
        sent = x * torch.tensor(step, device=device)  # ok: TPU303
        chosen = weight[torch.tensor([step], device=device)]  # ok: TPU303
        masked = x * (torch.arange(16, device=device) < step)  # ok: TPU303
        squared = x**2  # ok: TPU303
        half = x[:, : x.shape[1] // 2]  # ok: TPU303
        loss = sum(
            one.mean() for one in (
                best, turned, lower, power, row, head, noise, first, scaled, shifted, cooled, dropped, clamped, filled,
                sent, chosen, masked, squared, half,
            )
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


def crops(model, loader, optimizer):
    for images, labels in loader:
        images = images.to(device)
        top = random.randint(0, 8)
        images = images[:, :, top : top + 24]  # TPU303: top
        size = random.choice(SIZES)
        images = F.interpolate(images, size=(size, size))  # TPU303: size
        brightness = random.uniform(0.8, 1.2)
        images = images * brightness  # ok: TPU303
        loss = F.cross_entropy(model(images), labels.to(device))
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        optimizer.zero_grad()


def lengths(model, optimizer):
    for length in (7, 9, 12):
        ids = torch.randint(0, 100, (4, length)).to(device)  # TPU303: length
        high = torch.randint(0, length, (4, 16)).to(device)  # ok: TPU303
        optimizer.zero_grad()
        (model(ids).mean() + high.sum()).backward()
        optimizer.step()
        torch_xla.sync()


def decode(cell, token):
    position = 0
    cache = torch.zeros(16, 8).to(device)
    while position < 16:
        token = cell(token)
        cache.select(0, position).copy_(token)  # TPU303: position
        position += 1
        torch_xla.sync()


def one_step(model, x, k):
    values = model(x).to(device).topk(k).values  # TPU303: k
    values.mean().backward()
    torch_xla.sync()


def curriculum(model, loader):
    for step, x in enumerate(loader):
        one_step(model, x, k=min(8, 1 + step // 100))


class Network(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(layers)])
        self.width = 8
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        parts = []
        for i in range(4):
            parts.append(x[:, i])  # ok: TPU303
        for depth, layer in enumerate(self.layers):
            x = layer(x) ** (depth + 1)  # ok: TPU303
        tail = x[:, : self.width]  # ok: TPU303
        grown = x[:, : self.steps]  # TPU303: self.steps
        return torch.stack(parts, dim=1).sum() + tail.sum() + grown.sum()


def each_epoch(model, loader, optimizer):
    for epoch in range(3):
        for x in loader:
            x = x.to(device)
            optimizer.zero_grad()
            model(x[:, : 8 * (epoch + 1)]).mean().backward()  # ok: TPU303
            optimizer.step()
            torch_xla.sync()


def by_hand(model, images, labels, optimizer):
    for start in range(0, 1000, 50):
        x = images[start : start + 50].to(device)  # ok: TPU303
        y = labels[start : start + 50].to(device)  # ok: TPU303
        rate = 0.1 * (1 + math.cos(math.pi * start / 1000))
        for group in optimizer.param_groups:
            group["lr"] = rate  # ok: TPU303
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        if start % 500 == 0:
            print(start, x.shape, SIZES[start % 3])  # ok: TPU303


def curriculum(model, optimizer, texts: torch.Tensor, steps):
    for step in range(steps):
        batch = texts[:, : step + 1].to("xla")  # TPU303: The size of texts[:, : step + 1]
        rows = texts[step * 8 : step * 8 + 8].to("xla")  # ok: TPU303
        loss = model(batch, rows).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


class Dropped(nn.Module):
    def __init__(self, layers, rate):
        super().__init__()
        self.layers, self.rate = layers, rate

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < self.rate:  # TPU303: What is computed here depends on random.random()
                continue
            x = layer(x)
        return x


def forced(model, decoder, optimizer, loader):
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        teacher = random.random() < 0.5
        given = y if teacher else model(x)  # TPU303: depends on teacher, a random number
        for _ in range(random.randint(1, 4)):  # TPU303: The number of iterations is drawn at random
            given = decoder(given)
        if random.random() < 0.01:  # ok: TPU303
            print("step", step)
        if step > 100:  # ok: TPU303
            given = given * 2
        loss = given.mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


class Flipped(torch.utils.data.Dataset):
    def __getitem__(self, index):
        x = torch.randn(3, 8, 8)
        return x.flip(-1) if random.random() < 0.5 else x  # ok: TPU303


def crop_size():
    return random.choice(SIZES)


def random_box(height, width, share):
    cut = int(width * share)
    x, y = np.random.randint(width), np.random.randint(height)
    left, right = np.clip(x - cut // 2, 0, width), np.clip(x + cut // 2, 0, width)
    return left, y, right, height


def fixed_box(height, width):
    return 0, 0, width // 2, height // 2


def is_dropped():
    return random.random() < 0.1


def mixed(model, optimizer, loader):
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        left, top, right, bottom = random_box(32, 32, 0.5)
        images[:, :, :, left:right] = images.flip(0)[:, :, :, left:right]  # TPU303: left
        whole = images[:, :, :bottom]  # ok: TPU303
        small = F.interpolate(images, size=crop_size())  # TPU303: crop_size()
        a, b, c, d = fixed_box(32, 32)
        corner = images[:, :, b:d, a:c]  # ok: TPU303
        widths = [random.randint(8, 16) for _ in range(2)]
        first = images[..., : widths[0]]  # TPU303: widths[0]
        for width in widths:
            first = first + images[..., :width].mean()  # TPU303: width
        for width in (8, 16):
            first = first + images[..., :width].mean()  # ok: TPU303
        if is_dropped():  # TPU303: is_dropped(), a random number
            whole = whole * 2
        loss = model(whole).mean() + small.mean() + corner.mean() + first.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
