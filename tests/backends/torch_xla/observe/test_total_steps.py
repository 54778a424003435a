"""The number of all steps of a training, known ahead from its loaders and loops. Real runs on XLA:CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")
pytest.importorskip("transformers.trainer")  # here, as in a notebook: else every worker imports it

from tests.launch.launching import run  # noqa: E402
from tpu_magics.launch.results import TrainResult  # noqa: E402
from tpu_magics.runs.events import Total, Warned, only  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def loader(rows: int, batch: int) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(rows, 8)), batch_size=batch)


def placed() -> tuple[Any, Any]:
    model = torch.nn.Linear(8, 4).to("xla")
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def totals(result: TrainResult, rank: int = 0) -> list[tuple[int, str]]:
    assert [event for event in only(result.run.events(), Warned) if event.code == "observing-stopped"] == []
    return [(one.steps, one.source) for one in only(result.run.events("total", rank=rank), Total)]


def accumulates(config: Any) -> None:
    import torch_xla

    model, optimizer = placed()
    batches = loader(32, 2)
    for _epoch in range(config.epochs):
        for number, (x,) in enumerate(batches, 1):
            model(x.to("xla")).pow(2).mean().backward()
            if number % config.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                torch_xla.sync()


def test_a_plain_loop_that_accumulates_gradients() -> None:
    result = run(accumulates, SimpleNamespace(epochs=3, accumulate=4))
    assert result.steps == 12 and totals(result) == [(12, "16 batches x 3 epochs")]


def test_the_limit_bounds_it() -> None:
    result = run(accumulates, SimpleNamespace(epochs=3, accumulate=4), steps=9)
    assert result.steps == 9 and totals(result) == [(9, "--steps")]


def one_epoch(model: Any, optimizer: Any, batches: Any) -> None:
    for (x,) in batches:
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def evaluated(model: Any, batches: Any) -> float:
    total = 0.0
    for (x,) in batches:
        total += model(x).sum()
    return float(total)


def with_functions(epochs: int) -> None:
    import torch_xla
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    model, optimizer = placed()
    batches, others = (MpDeviceLoader(loader(rows, 4), torch_xla.device()) for rows in (40, 12))
    for _epoch in range(epochs):
        one_epoch(model, optimizer, batches)
        print(evaluated(model, others))


def test_xla_loaders_in_functions_with_an_evaluation_in_each_epoch() -> None:
    result = run(with_functions, 3)
    train, evaluation = "10 batches x 3 epochs", "3 batches x 3 epochs"
    assert result.steps == 39 and totals(result) == [(30, train), (39, f"{train} + {evaluation}")]


def with_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, batches, others = accelerator.prepare(model, optimizer, loader(64, 4), loader(16, 4))
    for _epoch in range(2):
        for (x,) in batches:
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        for (x,) in others:
            with torch.no_grad():
                accelerator.gather_for_metrics(model(x))


def test_accelerate_on_two_ranks_each_with_its_own_part() -> None:
    result = run(with_accelerate, processes=2)
    train, evaluation = "8 batches x 2 epochs", "2 batches x 2 epochs"
    assert result.steps == 20
    for rank in (0, 1):
        assert totals(result, rank) == [(16, train), (20, f"{train} + {evaluation}")]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        found = self.layer(x)[:, 0]
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


def with_trainer() -> list[int]:
    """A training, and one that goes on from its checkpoint."""
    from transformers import Trainer, TrainingArguments

    rows = [{"x": x, "labels": x.sum()} for x in torch.randn(64, 8)]
    common = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "optim": "adamw_torch"}
    common |= {"report_to": "none", "disable_tqdm": True, "logging_steps": 2, "eval_strategy": "epoch"}
    common |= {"save_strategy": "epoch"}
    first = Trainer(Net(), TrainingArguments("output", num_train_epochs=2, **common), None, rows, rows[:24])
    first.train()
    second = Trainer(Net(), TrainingArguments("output", num_train_epochs=4, **common), None, rows, rows[:24])
    second.train(resume_from_checkpoint=True)
    return [first.state.global_step, second.state.global_step]


def test_a_trainer_and_one_that_goes_on() -> None:
    result = run(with_trainer, timeout=200.0)
    assert result.value == [16, 32]
    # updates, and three batches of each evaluation; and one step at the first start
    first, second = 16 + 2 * 3, 32 + 4 * 3 + 1
    assert [steps for steps, _ in totals(result)] == [first, first + 1, second, second + 1]
    assert result.steps == second + 1 and {source for _, source in totals(result)} == {"Trainer.max_steps"}
