"""Sizes that are read out of tensors."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.nn.utils.rnn import pack_padded_sequence

BATCH = 32
MAX_LENGTH = 128


class Encoder(nn.Module):
    def __init__(self, size, layers=2):
        super().__init__()
        self.size = size
        self.lstm = nn.LSTM(size, size, layers, batch_first=True)
        self.start = nn.Parameter(torch.zeros(1, 1, size))

    def forward(self, x, lengths: torch.Tensor, ratio: float = 0.5, past=None):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)  # TPU204: depends on the lengths # TPU102: lengths.cpu()
        hidden, _ = self.lstm(packed)
        cut = x[:, : lengths.max()]  # TPU204: depend on the value of lengths.max()
        places = torch.arange(lengths.max(), device=x.device)  # TPU204: torch.arange(lengths.max(), device=x.device)
        parts = torch.split(x, lengths.tolist())  # TPU204: lengths.tolist() # TPU102: lengths.tolist()
        start = self.start.expand(x.size(0), -1, -1)  # ok: TPU204
        steps = torch.arange(x.size(1), device=x.device)  # ok: TPU204
        half = x[:, : x.shape[1] // 2]  # ok: TPU204
        some = x[:, : int(x.shape[1] * ratio)]  # ok: TPU204
        side = int(math.sqrt(x.shape[1]))
        grid = x.reshape(x.shape[0], side, side, self.size)  # ok: TPU204
        offset = 0 if past is None else past.shape[1]
        rest = x[:, offset:]  # ok: TPU204
        left, right = x.split(self.size // 2, dim=-1)  # ok: TPU204
        return hidden, cut, places, parts, start, steps, half, some, grid, rest, left, right


def trimmed(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    longest = int(mask.sum(1).max())
    return hidden[:, :longest]  # TPU204: depend on the value of longest


def padded(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    missing = target.max().item() - hidden.shape[1]
    return F.pad(hidden, (0, 0, 0, missing))  # TPU204: missing


def padded_to_multiple(hidden: torch.Tensor, multiple: int = 64) -> torch.Tensor:
    missing = -hidden.shape[1] % multiple
    return F.pad(hidden, (0, 0, 0, missing))  # ok: TPU204


def train(model, dataset, steps):
    device = xm.xla_device()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    names = ["a", "b", "c"]
    loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=BATCH, drop_last=True), device)
    for step, batch in enumerate(loader):
        x, labels = batch["x"], batch["labels"]
        count = (labels >= 0).sum()
        first = x[:count]  # TPU204: x[:count]
        number = count.item()  # TPU102: count.item()
        last = x[-number:]  # TPU204: x[-number:] depend on the value of number
        noise = torch.randn(number, 8, device=device)  # TPU204: torch.randn(number, 8, device=device)
        row = x.narrow(0, 0, number)  # TPU204: x.narrow(0, 0, number)
        wide = x[:, :1].expand(-1, number)  # TPU204: depends on the value of number
        tiled = x.repeat(count, 1)  # TPU204: x.repeat(count, 1)
        best = x.topk(number).values  # TPU204: x.topk(number)
        classes = F.one_hot(labels.clamp(min=0))  # TPU204: largest value of labels.clamp(min=0)
        fixed = F.one_hot(labels.clamp(min=0), num_classes=10)  # ok: TPU204
        five = x.topk(5).values  # ok: TPU204
        zeros = torch.zeros(BATCH, x.size(-1), device=device)  # ok: TPU204
        same = torch.zeros(x.shape, device=device)  # ok: TPU204
        window = x[:, MAX_LENGTH // 2 : MAX_LENGTH]  # ok: TPU204
        full = torch.full((4,), 1.0, device=device)  # ok: TPU204
        out = model(x, labels)
        loss = F.cross_entropy(out, labels)
        loss.backward()
        xm.optimizer_step(optimizer)
        if step % 100 == 0:
            losses.append(loss.item())
        recent = losses[-10:]  # ok: TPU204
        shown = names[: len(names) // 2]  # ok: TPU204
    return losses[:steps]  # ok: TPU204


def collate(samples):
    lengths = torch.tensor([len(one) for one in samples])
    batch = torch.stack(samples)
    return batch[:, : lengths.max()]  # ok: TPU204
