"""Batches and outputs in classes of their own, trainers with methods, and what accelerate prepared."""

from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from accelerate import Accelerator
from readers import make_loaders
from transformers import Trainer


class Batch(NamedTuple):
    source: torch.Tensor
    target: torch.Tensor
    count: int


@dataclass
class Output:
    logits: torch.Tensor
    loss: Optional[torch.Tensor] = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 8)

    def forward(self, features, starts=None, n_valid=None):
        logits = self.head(features)
        if starts is not None:  # ok: TPU101
            logits = logits[starts.bool()]  # TPU201: the values of starts.bool()
        if n_valid is not None:
            logits = logits * (torch.arange(8, device=logits.device) < n_valid[:, None])
            if n_valid.min() == 0:  # TPU101: the value of n_valid.min()
                logits = logits + 1
        return Output(logits, loss=logits.mean())


def moved(batch: Batch, place) -> Batch:
    return Batch(batch.source.to(place), batch.target.to(place), batch.count)


def train(batches, optimizer):
    place = torch_xla.device()
    net = Net().to(place)
    for batch in batches:
        batch = moved(batch, place)
        if batch.count > 10:  # ok: TPU101
            continue
        if batch.source.sum() == 0:  # TPU101: the value of batch.source.sum()
            continue
        out = net(batch.source)
        if out.loss is None:  # ok: TPU101
            continue
        out.loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        optimizer.zero_grad()
        print("loss", out.loss)  # TPU103: the value of out.loss
        print("count", batch.count)  # ok: TPU103


def prepared(model):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters())
    first, second = make_loaders()
    model, optimizer, first, second = accelerator.prepare(model, optimizer, first, second)
    for batch in first:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        lengths = batch["attention_mask"].sum(1)
        longest = lengths.max().item()  # TPU102: lengths.max()
        print(longest, batch["input_ids"].shape)  # ok: TPU103
    for batch in second:
        made = model.generate(batch["input_ids"], max_length=64)
        made, labels = accelerator.gather_for_metrics((made, batch["labels"]))
        made, labels = made.cpu(), labels.cpu()  # TPU102: reads the value of made
        right = (made == labels).sum().item()  # ok: TPU102
        if right > 3:  # ok: TPU101
            print(right)


class MaskedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        mask = labels != -100
        if mask.sum() == 0:  # TPU101: the value of mask.sum()
            return outputs.logits.sum() * 0
        loss = torch.nn.functional.cross_entropy(outputs.logits[mask], labels[mask])  # TPU201: the values of mask
        return (loss, outputs) if return_outputs else loss  # ok: TPU101

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs)
        print("step", loss.item())  # TPU102: loss.item()
        if self.state.global_step % 100 == 0:
            print(loss.item())  # ok: TPU102
        return loss


def bench(function, *given, repeat=10):
    for _ in range(repeat):  # ok: TPU104
        out = function(*given)
    return out


def measure():
    return bench(torch.sin, torch.randn(8, 8, device=torch_xla.device()))
