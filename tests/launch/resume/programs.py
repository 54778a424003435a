"""Trainings of every form that a run can be resumed in, each with all that a naive resume loses: a shuffled order,
random numbers of every kind, a scheduler, gradient accumulation, running sums, a history, the best weights so far."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tpu_magics
from tests import framework

KILL = "TEST_KILL"  # "STEP WHO SIGNAL [PLACE]"; WHO: self, all or kernel; PLACE: after a checkpoint was written there
history: list[Any] = []
counter = {"steps": 0}


def kill_at(step: int, who: str = "self", name: str = "SIGKILL", saved: Path | None = None) -> str:
    return f"{step} {who} {name} {saved or ''}".strip()


def may_die(step: int) -> None:
    """End this worker, all of them, or the process that stands for the kernel, if that is due."""
    wanted = os.environ.get(KILL, "")
    if not wanted or int(wanted.split()[0]) != step:
        return
    _, who, name, *saved = wanted.split()
    number = getattr(signal, name)
    waited = time.monotonic() + 60  # a save takes longer than these steps on a busy machine
    while saved and not [*Path(saved[0]).glob("*/*/manifest.json")] and time.monotonic() < waited:
        time.sleep(0.01)
    if who == "kernel":
        os.kill(os.getppid(), number)
        time.sleep(30)
    elif who == "all" or framework.rank() == 0:
        os.kill(os.getpid(), number)
        time.sleep(30)


def data(count: int = 48, seed: int = 3) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))


def begin() -> Any:
    """All random states as in a new kernel, and a model."""
    torch.manual_seed(0)
    framework.set_seed(0)
    random.seed(0)
    np.random.seed(0)
    history.clear()
    counter["steps"] = 0
    layers = (torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    return torch.nn.Sequential(*layers)


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    return ((model(inputs) - targets) ** 2).mean()


def plain(model: Any, epochs: int = 3) -> Any:
    """A batch loop in the function itself."""
    device = framework.device()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    loader = torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    total, best = 0.0, None
    for epoch in range(epochs):
        seen = 0
        for step, (inputs, targets) in enumerate(loader):
            noise = random.random() + np.random.rand()
            optimizer.zero_grad()
            loss = loss_of(model, inputs.to(device), targets.to(device)) * (1 + 0.01 * noise)
            loss.backward()
            optimizer.step()
            framework.sync()
            scheduler.step()
            total += loss.item()
            seen += len(inputs)
            tpu_magics.log(loss=loss.item(), lr=scheduler.get_last_lr()[0])
            counter["steps"] += 1
            history.append((epoch, step, loss.item()))
            if best is None or loss.item() < best[0]:
                best = (loss.item(), epoch, step)
            may_die(counter["steps"])
        history.append({"epoch": epoch, "seen": seen})
    return total, best, scheduler.last_epoch, history[-3:]


def _one_epoch(accelerator: Any, parts: Any, losses: list[float]) -> None:
    model, optimizer, loader, scheduler = parts
    model.train()
    running = torch.zeros((), device=accelerator.device)
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, inputs, targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        running += loss.detach()
        counter["steps"] += 1
        tpu_magics.log(loss=loss)
        may_die(counter["steps"])
    losses.append(float(running.cpu()))


def accelerated(model: Any, epochs: int = 4) -> Any:
    """Accelerate, with a function for each epoch, an evaluation, and the best weights kept."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(42)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    unseen = torch.utils.data.DataLoader(data(16, 4), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=1000)
    model, optimizer, loader, unseen, scheduler = accelerator.prepare(model, optimizer, loader, unseen, scheduler)
    losses: list[float] = []
    best: Any = None
    lowest = 1e9
    for _epoch in range(epochs):
        _one_epoch(accelerator, (model, optimizer, loader, scheduler), losses)
        model.eval()
        with torch.no_grad():
            found = [loss_of(model, inputs, targets) for inputs, targets in unseen]
        value = float(torch.stack(found).mean().cpu())
        if value < lowest:
            lowest, best = value, {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}
    return losses, lowest, sum(float(one.sum()) for one in best.values()), scheduler.get_last_lr()


class Words(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random sentences with a class."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, 50, (count, 8), generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


class Classifier(torch.nn.Module):
    """As few operations as possible: outside of torch.compile, TorchTPU compiles each of them in each worker."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.layers = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))

    def forward(self, input_ids: Any, labels: Any) -> dict[str, Any]:
        logits = self.layers(self.words(input_ids).sum(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes))


def trained(model: Any, folder: str, epochs: int = 3) -> Any:
    """transformers' Trainer, with logging and an evaluation each epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            may_die(state.global_step)

    arguments = TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        logging_steps=4,
        save_strategy="no",
        eval_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        learning_rate=1e-3,
        warmup_steps=3,
    )
    net = Classifier() if framework.TORCH_TPU else bert()
    trainer = Trainer(net, arguments, train_dataset=Words(32), eval_dataset=Words(8), callbacks=[Dies()])
    result = trainer.train()
    quiet = ("runtime", "second")
    logs = [{k: v for k, v in one.items() if not any(q in k for q in quiet)} for one in trainer.state.log_history]
    weights = {name: float(one.double().cpu().sum()) for name, one in net.state_dict().items()}
    return result.training_loss, trainer.state.global_step, logs, weights


def one_line(model: Any) -> Any:
    """A loop that no source shows: only `resumable` is known of it."""
    space: dict[str, Any] = {"tpu_magics": tpu_magics, "torch": torch, "framework": framework, "data": data}
    space.update(loss_of=loss_of, may_die=may_die, counter=counter, history=history)
    exec(_HIDDEN, space)
    return space["train"](model)


_HIDDEN = """
def train(model):
    device = framework.device()
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    total = 0.0
    for inputs, targets in tpu_magics.resumable(loader, epochs=3):
        optimizer.zero_grad()
        loss = loss_of(model, inputs.to(device), targets.to(device))
        loss.backward()
        optimizer.step()
        framework.sync()
        total += loss.item()
        counter["steps"] += 1
        history.append(total)
        may_die(counter["steps"])
    return total, history[-2:]
"""

FORMS: dict[str, tuple[Callable[..., Any], int]] = {  # with the number of steps
    "plain": (plain, 36),
    "accelerate": (accelerated, 48),
    "resumable": (one_line, 36),
    "trainer": (trained, 24),
}


def arguments(form: str, folder: Path) -> tuple[Any, ...]:
    """Besides the model."""
    return (str(folder),) if form == "trainer" else ()
