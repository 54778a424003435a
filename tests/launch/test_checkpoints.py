"""Gradient checkpointing and accelerate's save_state and load_state on XLA devices: real runs on XLA:CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests.launch.launching import run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

PATIENCE = 200.0


def blocks(dropout: float) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4), torch.nn.Dropout(dropout), torch.nn.Tanh(), torch.nn.Linear(4, 4)]
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(*layers))


def checkpointed(models: Any, steps: int) -> list[tuple[list[float], int]]:
    """Each model trained: without checkpointing, with it, and with the reentrant form. Losses, and the barriers."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch.utils.checkpoint import checkpoint

    device, found = torch_xla.device(), []
    for model, reentrant in zip(models, (None, False, True), strict=True):
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        xm.set_rng_state(7)
        x, losses, barriers = torch.ones(8, 4).to(device), [], 0
        for _ in range(steps):
            first = model[0](x)
            last = model[1](first) if reentrant is None else checkpoint(model[1], first, use_reentrant=reentrant)
            loss = last.pow(2).mean()
            loss.backward()
            grads = [parameter.grad for parameter in model.parameters()]
            barriers = torch_xla._XLAC._get_xla_tensors_hlo(grads).count("opt-barrier(")
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            losses.append(loss.item())
        found.append((losses, barriers))
    return found


@pytest.mark.parametrize(("dropout", "steps"), [(0.0, 4), (0.5, 1)])
def test_checkpointing_trains_to_the_same_weights(dropout: float, steps: int) -> None:
    """With dropout as well: what is recomputed draws the same numbers."""
    models = [blocks(dropout) for _ in range(3)]
    plain, one, other = run(checkpointed, models, steps, timeout=PATIENCE).value
    assert one[0] == pytest.approx(plain[0], rel=1e-6) and other[0] == pytest.approx(plain[0], rel=1e-6)
    # Without a barrier XLA would keep the first values instead of recomputing them.
    assert plain[1] == 0 and one[1] and other[1]
    for model in models[1:]:
        for name, tensor in model.state_dict().items():
            assert torch.allclose(tensor, models[0].state_dict()[name], rtol=1e-6, atol=1e-7), name


def gpt_trained(models: Any) -> list[list[float]]:
    from transformers import Trainer, TrainingArguments

    ids = torch.randint(1, 32, (16, 8), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": one, "labels": one} for one in ids]
    found = []
    for checkpointing, model in zip((False, True), models, strict=True):
        arguments: dict[str, Any] = {"max_steps": 2, "optim": "adamw_torch", "report_to": "none", "logging_steps": 1}
        made = TrainingArguments("out", save_strategy="no", gradient_checkpointing=checkpointing, **arguments)
        trainer = Trainer(model, made, train_dataset=rows)
        trainer.train()
        found.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    return found


@pytest.mark.long
def test_training_arguments_with_gradient_checkpointing() -> None:
    from tests.launch.test_trainer import language_model

    plain, checkpointing = language_model(), language_model()
    losses = run(gpt_trained, (plain, checkpointing), timeout=PATIENCE).value
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, tensor in plain.state_dict().items():
        assert torch.allclose(tensor, checkpointing.state_dict()[name], rtol=1e-5, atol=1e-6), name


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.last = torch.nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


def saved(folder: str, model: Any, resume: bool) -> tuple[list[float], float]:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(x, -x), batch_size=4)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    def epoch() -> list[float]:
        losses = []
        for features, labels in loader:
            loss = torch.nn.functional.mse_loss(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(float(accelerator.gather(loss.detach()).mean()))
        return losses

    if resume:
        accelerator.load_state(folder)
    else:
        epoch()
        accelerator.save_state(folder)
    return epoch(), float(scheduler.get_last_lr()[0])


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_save_state_and_load_state(tmp_path: Path, ranks: int) -> None:
    """Training goes on from what was saved as if it had not stopped, with tied weights too."""
    folder = str(tmp_path / "state")
    whole, resumed = Tied(), Tied()
    first = run(saved, folder, whole, False, processes=ranks, timeout=PATIENCE)
    second = run(saved, folder, resumed, True, processes=ranks, timeout=PATIENCE)
    assert second.value[0] == pytest.approx(first.value[0], rel=1e-6) and second.value[1] == first.value[1]
    assert torch.allclose(whole.first.weight, resumed.first.weight, rtol=1e-6, atol=1e-7)


def passes(model: Any) -> tuple[list[Any], ...]:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(10 * accelerator.num_processes, 4))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    last, stepped, sizes = [], [], []
    for _ in range(2):
        for (x,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            last.append(accelerator.gradient_state.end_of_dataloader)
            stepped.append(accelerator.sync_gradients)
            sizes.append(len(accelerator.gather_for_metrics(x)))
    return last, stepped, sizes, [accelerator.gradient_state.in_dataloader, len(loader.dataset)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_knows_the_last_batch_as_on_the_cpu(ranks: int) -> None:
    """Its own wrapper for XLA has the state of the thread that loads ahead."""
    result = run(passes, torch.nn.Linear(4, 1), processes=ranks, timeout=PATIENCE)
    sizes = [4 * ranks, 4 * ranks, 2 * ranks]
    assert result.value == ([False, False, True] * 2, [False, True, True] * 2, sizes * 2, [False, 10 * ranks])
