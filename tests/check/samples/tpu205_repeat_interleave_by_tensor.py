"""A length regulator (text to speech) and beams, repeated by tensors and by numbers."""

import numpy as np
import torch
import torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import repeat_interleave

HEADS = 8
GROUPS = 4


class LengthRegulator(nn.Module):
    def __init__(self, size, frames=2):
        super().__init__()
        self.durations = nn.Linear(size, 1)
        self.frames = frames

    def forward(self, hidden, durations=None, beams: int = 4):
        if durations is None:
            durations = self.durations(hidden).squeeze(-1).exp().round().long()
        long = torch.repeat_interleave(hidden, durations, dim=0)  # TPU205: depends on the values of durations
        flat = hidden.repeat_interleave(durations.clamp(min=1), dim=0)  # TPU205: durations.clamp(min=1)
        places = torch.repeat_interleave(durations)  # TPU205: torch.repeat_interleave(durations)
        many = hidden.repeat_interleave(beams, dim=0)  # ok: TPU205
        twice = torch.repeat_interleave(hidden, 2, dim=1)  # ok: TPU205
        heads = hidden.repeat_interleave(HEADS // GROUPS, dim=1)  # ok: TPU205
        frames = hidden.repeat_interleave(repeats=self.frames, dim=0)  # ok: TPU205
        known = torch.repeat_interleave(hidden, durations, dim=0, output_size=512)  # ok: TPU205
        return long, flat, places, many, twice, heads, frames, known


def repeated(keys: torch.Tensor, groups: int) -> torch.Tensor:
    return keys if groups == 1 else keys.repeat_interleave(groups, dim=1)  # ok: TPU205


def by_batch(sizes: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    owner = torch.arange(states.shape[0], device=states.device)
    owner = repeat_interleave(owner, sizes)  # TPU205: repeat_interleave(owner, sizes)
    return states.index_select(0, owner)


def train(model, dataset):
    device = xm.xla_device()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for text, counts, target in pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=4, drop_last=True), device):
        spread = text.repeat_interleave(counts)  # TPU205: text.repeat_interleave(counts)
        named = torch.repeat_interleave(input=text, repeats=counts)  # TPU205: depends on the values of counts
        lengths = (text != 0).sum(-1)
        again = torch.repeat_interleave(target, lengths, dim=0)  # TPU205: lengths
        shared = target.repeat_interleave(text.shape[1], dim=0)  # ok: TPU205
        stacked = target.repeat(2, 1)  # ok: TPU205
        loss = (model(text) - target).pow(2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)


def host_table(counts):
    return np.repeat(np.arange(len(counts)), counts)  # ok: TPU205


def collate(samples):
    sizes = torch.tensor([len(one) for one in samples])
    return torch.repeat_interleave(torch.arange(len(samples)), sizes)  # ok: TPU205
