"""Loops and picks: by shapes and Python numbers, and by what the device computed."""

import torch
import torch.nn.functional as F
from torch import nn
import torch_xla
import torch_xla.core.xla_model as xm

CLASSES = ["cat", "dog", "bird"]


class Recurrent(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.scales = [1.0, 0.5, 0.25]
        self.cache = {}

    def forward(self, x, lengths, route):
        hidden = torch.zeros_like(x[:, 0])
        for i in range(lengths.max()):  # TPU104: depends on the value of lengths.max()
            hidden = self.cell(x[:, i], hidden)
        for i in range(int(lengths.max())):  # TPU104: depends on the value of lengths.max()
            hidden = self.cell(x[:, i], hidden)
        for i in range(1, lengths[0].item() + 1):  # TPU104: the value of lengths[0]
            hidden = hidden + x[:, i]
        longest = lengths.max().item()  # TPU102: lengths.max().item() reads
        for i in range(longest):  # TPU104: the value of longest
            hidden = hidden * 2
        hidden = self.experts[route](hidden)  # TPU104: The item of self.experts[route] depends on the value of route
        hidden = hidden * self.scales[route.argmax()]  # TPU104: depends on the value of route.argmax()
        copies = [hidden] * lengths.min()  # TPU104: depends on the value of lengths.min()
        few = self.scales[: route.max()]  # TPU104: The item of self.scales[: route.max()] depends on the value of route.max()
        for i in range(x.shape[1]):  # ok: TPU104
            hidden = torch.where((i < lengths)[:, None], self.cell(x[:, i], hidden), hidden)
        for i in range(0, x.size(1), 2):  # ok: TPU104
            hidden = hidden + x[:, i]
        for row in x.unbind(1):  # ok: TPU104
            hidden = hidden + row
        for row in lengths:  # ok: TPU104
            hidden = hidden * row
        for number, expert in enumerate(self.experts):  # ok: TPU104
            hidden = expert(hidden) * self.scales[number % 3]  # ok: TPU104
        pieces = [hidden] * len(self.experts) + copies  # ok: TPU104
        table = torch.stack(pieces)[0]  # ok: TPU104
        self.cache[hidden] = table  # ok: TPU104
        return x[:, 0] + table + self.cache[hidden] + few[0]  # ok: TPU104


def train(model, optimizer, loader):
    device = torch_xla.device()
    names = dict(enumerate(CLASSES))
    for step, (x, y) in enumerate(loader):
        first = CLASSES[y[0]]  # ok: TPU104
        x, y = x.to(device), y.to(device)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        guess = CLASSES[logits[0].argmax()]  # TPU104: depends on the value of logits[0].argmax()
        state = optimizer.state[model.head.weight]  # ok: TPU104
        picked = logits[torch.arange(len(y), device=device), y]  # ok: TPU104
        for _ in range(y.numel()):  # ok: TPU104
            picked = picked + 1
        if step % 100 == 0:
            print(CLASSES[logits[0].argmax()], first, guess, state, picked.shape, names[0])  # ok: TPU104
        xm.mark_step()
    for i in range(int(loss) + 1):  # ok: TPU104
        print(i)


def label(index):
    return CLASSES[index]  # ok: TPU104


class LastState(nn.Module):
    def forward(self, hidden, lengths, index, scores):
        rows = []
        for i in range(hidden.shape[0]):
            rows.append(hidden[i, lengths[i] - 1])  # TPU104: depends on the value of lengths[i] - 1
            rows.append(hidden[i, index[i]])  # ok: TPU104
        best = scores.argmax()
        rows.append(hidden[best])  # TPU104: The item of hidden[best] depends on the value of best
        rows.append(hidden[torch.argmax(scores)])  # TPU104: torch.argmax(scores)
        rows.append(hidden[scores.argmax(dim=-1)].mean(0))  # ok: TPU104
        rows.append(hidden[best[None]].squeeze(0))  # ok: TPU104
        places = torch.arange(hidden.shape[0], device=hidden.device)
        last = hidden[places, lengths - 1]  # ok: TPU104
        first = hidden.gather(1, (lengths - 1)[:, None, None])  # ok: TPU104
        return torch.stack(rows), last, first
