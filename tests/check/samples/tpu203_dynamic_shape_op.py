"""Operations whose results have as many elements as the values say."""

import numpy as np
import pandas as pd
import torch
import torch as t
import torch.nn as nn
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torchvision
from torch import masked_select, nonzero

frame = pd.read_csv("train.csv")
NAMES = frame["name"].unique()  # ok: TPU203
CLASSES = len(set(frame["label"]))
ROWS = np.where(frame["label"] == 0)[0]  # ok: TPU203
COUNTS = np.unique(frame["label"].to_numpy(), return_counts=True)  # ok: TPU203


class Router(nn.Module):
    """A mixture of experts, written as for a GPU."""

    def __init__(self, size, experts):
        super().__init__()
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(nn.Linear(size, size) for _ in range(experts))

    def forward(self, x):
        choice = self.gate(x).argmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = torch.where(choice == number)  # TPU203: torch.where(choice == number)
            result.index_add_(0, places[0], expert(x.index_select(0, places[0])))
        load = torch.bincount(choice)  # TPU203: torch.bincount(choice)
        fixed = torch.bincount(choice, minlength=len(self.experts))  # ok: TPU203
        flat = result.view(-1).reshape(-1, 4).flatten()  # ok: TPU203
        return result, load, fixed, flat


class StaticRouter(Router):
    def forward(self, x):
        share = F.one_hot(self.gate(x).argmax(-1), len(self.experts)).to(x.dtype)
        each = torch.stack([expert(x) for expert in self.experts], -1)
        return torch.where(share[:, None] > 0, each, 0.0).sum(-1)  # ok: TPU203


def loss_of_positives(logits, labels):
    per_token = F.cross_entropy(logits, labels, reduction="none")
    return masked_select(per_token, labels > 0).mean()  # TPU203: depends on the values of labels > 0


def loss_of_positives_static(logits, labels):
    per_token = F.cross_entropy(logits, labels, reduction="none")
    keep = labels > 0
    return torch.where(keep, per_token, torch.zeros_like(per_token)).sum() / keep.sum()  # ok: TPU203


def train(model, dataset):
    device = xm.xla_device()
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = set()
    for batch in pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=8, drop_last=True), device):
        ids, labels = batch["input_ids"], batch["labels"]
        out = model(ids).logits
        ends = (ids == 2).nonzero()  # TPU203: (ids == 2).nonzero()
        starts = nonzero(ids == 1, as_tuple=True)  # TPU203: nonzero(ids == 1, as_tuple=True)
        classes = labels.unique()  # TPU203: labels.unique()
        runs, lengths = torch.unique_consecutive(ids, return_counts=True)  # TPU203: torch.unique_consecutive
        words, inverse = t.unique(ids, return_inverse=True)  # TPU203: depends on the values of ids
        chosen = out.masked_select(labels[..., None] != -100)  # TPU203: out.masked_select
        high = torch.argwhere(out > 0)  # TPU203: torch.argwhere(out > 0)
        picked = torch.index_select(out, 0, torch.nonzero(labels[:, 0]).squeeze(1))  # TPU203: torch.nonzero(labels[:, 0])
        any_left = torch.count_nonzero(labels)  # ok: TPU203
        top = out.topk(3).values  # ok: TPU203
        clean = torch.where(torch.isnan(out), torch.zeros_like(out), out)  # ok: TPU203
        loss = model.loss(out, labels)
        loss.backward()
        xm.optimizer_step(optimizer)
        seen.add(len(ids))
    return sorted(seen), np.nonzero(np.asarray(sorted(seen)))  # ok: TPU203


def build_vocabulary(texts):
    ids = torch.tensor([ord(letter) for text in texts for letter in text])
    return ids.unique().tolist()  # ok: TPU203


class Words(torch.utils.data.Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        row = torch.as_tensor(self.ids[index])
        return {"input_ids": row, "places": torch.nonzero(row), "kinds": row.unique()}  # ok: TPU203


def detected(model, loader):
    for images in loader:
        boxes, scores = model(images.to(device))
        keep = torchvision.ops.nms(boxes, scores, 0.5)  # TPU203: torchvision.ops.nms(boxes, scores, 0.5)
        both = torchvision.ops.boxes.batched_nms(boxes, scores, keep, 0.5)  # TPU203: batched_nms
        torch_xla.sync()
    return keep, both
