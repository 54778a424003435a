"""Masks in a token classifier that trains on a TPU."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as loaders
from torch.nn.functional import cross_entropy

IGNORED = -100


class Tagger(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.head = nn.Linear(hidden, classes)
        self.classes = classes
        self.register_buffer("allowed_mask", torch.ones(classes, dtype=torch.bool))
        every_other = torch.arange(classes) % 2 == 0
        self.register_buffer("weights", torch.ones(classes)[every_other])  # ok: TPU201

    def forward(self, hidden, labels=None, attention_mask=None, span=None):
        logits = self.head(hidden)
        if attention_mask is not None:
            active = attention_mask.view(-1) == 1
            active_logits = logits.view(-1, self.classes)[active]  # TPU201: depends on the values of active
            active_labels = labels.view(-1)[active]  # TPU201: labels.view(-1)[active]
            loss = F.cross_entropy(active_logits, active_labels)
        else:
            loss = F.cross_entropy(logits.view(-1, self.classes), labels.view(-1))
        allowed = logits[..., self.allowed_mask]  # TPU201: self.allowed_mask
        first = logits[:, 0]  # ok: TPU201
        last = logits[:, -1, :]  # ok: TPU201
        half = logits[:, : logits.shape[1] // 2]  # ok: TPU201
        spread = logits[:, None, ..., :]  # ok: TPU201
        return loss, allowed, first, last, half, spread


def masked_loss(out, labels):
    keep = labels >= 0
    return F.cross_entropy(out[keep], labels[keep])  # TPU201: out[keep]


def masked_loss_inline(out, labels):
    return cross_entropy(out[labels != IGNORED], labels[labels != IGNORED])  # TPU201: depends on the values of labels != IGNORED


def masked_loss_static(out, labels):
    keep = labels >= 0
    return (F.cross_entropy(out, labels, reduction="none") * keep).sum() / keep.sum()  # ok: TPU201


def gathered(hidden, positions):
    rows = torch.arange(hidden.size(0), device=hidden.device)
    last = positions.argmax(dim=-1)
    return hidden[rows, last]  # ok: TPU201


def sorted_by_length(hidden, lengths):
    order = torch.argsort(lengths, descending=True)
    return hidden[order]  # ok: TPU201


def accuracy(preds, labels, mask):
    right = (preds[mask] == labels[mask]).float().mean()  # TPU201: preds[mask]
    wrong = preds[~mask].numel()  # TPU201: preds[~mask]
    return right, wrong


def positives(scores: torch.Tensor, threshold: float) -> torch.Tensor:
    return scores[scores > threshold]  # TPU201: scores[scores > threshold]


def compute_metrics(prediction):
    logits, labels = prediction
    chosen = labels != -100
    return {"accuracy": (logits.argmax(-1)[chosen] == labels[chosen]).mean()}  # ok: TPU201


def host_statistics(lengths):
    array = np.asarray(lengths)
    return array[array > 0].mean(), array[~np.isnan(array)]  # ok: TPU201


def train(model, dataset, epochs):
    device = xm.xla_device()
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()
    loader = loaders.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=32, drop_last=True), device)
    columns = [0, 2, 3]
    splits = {"train": dataset}
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            optimizer.zero_grad()
            hidden, labels = batch["hidden"], batch["labels"]
            out = model(hidden)
            keep = labels != -100
            loss = criterion(out[keep], labels[keep])  # TPU201: out[keep]
            finite = torch.isfinite(out).all(-1)
            kept = out[finite]  # TPU201: out[finite]
            both = out[(labels > 0) & (labels < 9)]  # TPU201: depends on the values of
            flags = batch["is_first"].bool()
            starts = out[flags, :]  # TPU201: out[flags, :]
            narrow = out[:, columns]  # ok: TPU201
            tokens = batch["input_ids"]  # ok: TPU201
            name = "train" if epoch % 2 == 0 else "valid"
            source = splits["train"]  # ok: TPU201
            picked = out[labels.clamp(min=0)]  # ok: TPU201
            top = out.topk(5).indices
            best = out.gather(-1, top)[..., 0]  # ok: TPU201
            loss.backward()
            xm.optimizer_step(optimizer)


def evaluate(model, loader, device):
    model.eval()
    predictions, references = [], []
    for batch in loader:
        with torch.no_grad():
            out = model(batch["input_ids"].to(device))
        predictions.append(out.argmax(-1).cpu())  # TPU102: out.argmax(-1)
        references.append(batch["labels"])
        torch_xla.sync()
    predictions = torch.cat(predictions)
    references = torch.cat(references)
    mask = references != -100
    return (predictions[mask] == references[mask]).float().mean()  # ok: TPU201


class Positions(nn.Module):
    def forward(self, x):
        steps = torch.arange(10)
        late = steps[steps > 3]  # ok: TPU201
        rows = torch.arange(10, device=x.device)
        return x[:, late], rows[rows > x.shape[1]]  # TPU201: rows
