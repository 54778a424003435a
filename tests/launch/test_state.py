"""What a training function changes besides weights: updated in place in the notebook, or named."""

from __future__ import annotations

import collections
import copy
import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import framework
from tests.launch.launching import FakeNotebook, digest, failed, fake_notebook, run, said
from tpu_magics.backends.torch.state import TorchState
from tpu_magics.launch import session
from tpu_magics.launch.state import changes
from tpu_magics.launch.state.snapshot import take_snapshot

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

RELATIVE = 1e-6
inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
targets = inputs.sum(1, keepdim=True)
losses: list[float] = []
best = 0.0


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> FakeNotebook:
    monkeypatch.setattr(session.current, "notebook", session.current.notebook)
    return fake_notebook()


class Net(torch.nn.Module):
    """Tied weights, an RNN, a counter, and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(4, 4, batch_first=True)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(4, 1)
        self.calls = 0
        self.told: tuple[int, ...] = ()

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.last(self.second(torch.relu(self.first(self.rnn(x)[0]))))

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.told = (*self.told, state)


class Ema:
    """A moving average as users write it."""

    def __init__(self, model: Any) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: Any) -> None:
        for name, value in model.named_parameters():
            self.shadow[name] = self.shadow[name].to(value.device).lerp_(value, 0.1)


class Program:
    """A model, and what users create with it in earlier cells."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.decay = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.9**step)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.ema = Ema(self.model)
        self.generator = torch.Generator().manual_seed(3)
        data = torch.utils.data.TensorDataset(inputs, targets)
        self.loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=self.generator)
        self.history: list[float] = []

    def train(self, device: str = framework.TYPE) -> None:
        self.model.to(device)
        self.average.to(device)
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = (self.model(x.to(device).unsqueeze(1)).squeeze(1) - y.to(device)).pow(2).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.decay.step()
            self.ema.update(self.model)
            self.average.update_parameters(self.model)
            if device == framework.TYPE:
                framework.sync()
            self.history.append(loss.item())
        self.plateau.step(self.history[-1])


def close(left: Any, right: Any) -> bool:
    return bool(torch.allclose(left, right, rtol=RELATIVE, atol=1e-7))


def test_training_continues_exactly(notebook: FakeNotebook) -> None:
    """N steps and N more in a second cell are 2N plain steps, with the objects of earlier cells."""
    ours, plain = Program(), Program()
    graph = ours.model(inputs.unsqueeze(1)).sum()  # somebody still holds a graph of its weights
    kept = {name: id(value) for name, value in vars(ours).items()}
    state = torch.get_rng_state()
    for _ in range(2):
        run(ours.train)
    order = torch.rand(1)
    torch.set_rng_state(state)
    for _ in range(2):
        plain.train("cpu")
    assert notebook.lines == []
    assert torch.equal(order, torch.rand(1)) and torch.equal(ours.generator.get_state(), plain.generator.get_state())
    assert kept == {name: id(value) for name, value in vars(ours).items()} and graph.requires_grad
    assert np.allclose(ours.history, plain.history, rtol=RELATIVE)
    for mine, other in ((ours.model, plain.model), (ours.average, plain.average)):
        values = {name: value for name, value in other.state_dict().items() if isinstance(value, torch.Tensor)}
        assert all(close(mine.state_dict()[name], value) for name, value in values.items())
    for one, other in zip(ours.optimizer.state.values(), plain.optimizer.state.values(), strict=True):
        assert one["step"] == other["step"] and close(one["exp_avg_sq"], other["exp_avg_sq"])
    assert all(close(ours.ema.shadow[name], value) for name, value in plain.ema.shadow.items())
    assert all(one is two for one, two in zip(ours.optimizer.state, ours.model.parameters(), strict=True))
    assert ours.decay.get_last_lr() == plain.decay.get_last_lr() and ours.decay.optimizer is ours.optimizer
    assert ours.plateau.best == pytest.approx(plain.plateau.best) and ours.scaler.get_scale() == 32.0
    assert ours.model.second.weight is ours.model.first.weight
    assert ours.model.calls == plain.model.calls + 1 and ours.model.told == (3, 5)


@dataclasses.dataclass(frozen=True)
class Frozen:
    items: dict[str, Any]


class Slotted:
    count = 0
    __slots__ = ("value",)


def changes_plain_objects(held: dict[str, Any]) -> Any:
    global best
    best = 3.0
    losses.append(0.5)
    random.random()
    Slotted.count += 1
    held["slotted"].value = held["list"]
    held["list"][0] = [1]
    held["set"].add(2)
    held["deque"].append(3)
    held["array"][1] = 7
    held["tensor"].add_(1)
    held["base"][0] = 5
    held["frozen"].items["new"] = losses
    held["self"] = held
    held["bytes"].extend(b"x")
    return losses, held["new"], held["tensor"]


@pytest.mark.smoke
def test_plain_objects_change_in_place(notebook: FakeNotebook) -> None:
    base = torch.zeros(4)
    held: dict[str, Any] = {"list": [[0]], "set": {1}, "deque": collections.deque([1, 2], maxlen=2)}
    held |= {"array": np.zeros(3), "tensor": torch.zeros(2), "base": base, "view": base[:2], "frozen": Frozen({})}
    held |= {"slotted": Slotted(), "bytes": bytearray(b"a"), "new": None, "same": [1, 2]}
    alias, before = dict(held), random.getstate()
    losses.clear()
    result = run(changes_plain_objects, held)
    assert best == 3.0 and losses == [0.5] and Slotted.count == 1 and random.getstate() != before
    assert result.value[0] is losses and result.value[2] is alias["tensor"]
    assert all(held[name] is value for name, value in alias.items())
    assert held["list"] == [[1]] and held["slotted"].value is held["list"] and held["self"] is held
    assert held["set"] == {1, 2} and list(held["deque"]) == [2, 3] and held["bytes"] == b"ax"
    assert held["array"].tolist() == [0, 7, 0] and held["tensor"].tolist() == [1, 1]
    assert held["view"].tolist() == [5, 0] and held["view"].data_ptr() == base.data_ptr()
    assert held["frozen"].items["new"] is losses
    assert {"held", "losses", "best"} <= set(result.changed) and result.left == {} and notebook.lines == []


def changes_what_cannot_be_pickled(log: Any, numbers: Any, held: dict[str, Any], seen: list[int]) -> None:
    log.write("a line")
    next(numbers)
    held["handle"] = lambda: None
    held["fine"] = 1
    seen.append(framework.rank())


def test_what_cannot_be_pickled_is_named(notebook: FakeNotebook, tmp_path: Path) -> None:
    held, seen = {"other": object()}, [7]
    with open(tmp_path / "log", "w") as log:
        numbers = (number for number in range(3))
        result = run(changes_what_cannot_be_pickled, log, numbers, held, seen, workers=2)
    assert result.left["log"] == "an open file" and result.left["numbers"] == "a generator"
    assert "<lambda>" in result.left["held['handle']"] and set(held) == {"other", "fine"}
    told, ranks = notebook.lines
    assert told.startswith("Changed in the worker, unchanged here: `log` (an open file), `numbers` (a generator)")
    assert ranks == "Ranks 0 and 1 differ in `seen`: the notebook has the values of rank 0." and seen == [7, 0]


def fills(rows: list[Any], count: int) -> None:
    rows.extend(torch.zeros(2**18) for _ in range(count))  # 1 MB each


def fails_late(rows: list[Any]) -> None:
    rows.append(1)
    raise ValueError("no")


def test_a_limit_and_a_failure(notebook: FakeNotebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_BYTES", 2 * 2**20)
    rows: list[Any] = []
    assert run(fills, rows, 3).left == {"rows": "3 MB, above the limit of 2 MB in all"} and rows == []
    failed(fails_late, rows)
    assert rows == []
    assert run(fills, rows, 1, steps=1).left == {} and len(rows) == 1  # it has no step, so it ended by itself


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All changes are undone if a later one fails."""
    program, values = Program(), {"a": [1], "n": np.zeros(2), "t": torch.zeros(2)}
    adapter = TorchState()
    roots = [("program", program), ("values", values)]
    snapshot = take_snapshot(roots, adapter, {"model": program.model})
    program.history.append(1.0)
    values["a"].append(2)  # type: ignore[attr-defined]
    values["t"].add_(1)  # type: ignore[attr-defined]
    collector = changes.ChangeCollector(snapshot, {"model": program.model}, adapter)
    collector.write(collector.changes(), tmp_path)
    program.history.clear()
    values["a"].pop()  # type: ignore[attr-defined]
    values["t"].zero_()  # type: ignore[attr-defined]
    staged = changes.stage(snapshot, adapter, tmp_path)
    staged.apply()()
    assert program.history == [] and values["a"] == [1] and values["t"].tolist() == [0, 0]  # type: ignore[attr-defined]
    last = snapshot.nodes[list(staged.contents)[-1]]

    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(type(last.kind), "put", full)
    with pytest.raises(MemoryError):
        staged.apply()
    assert program.history == [] and values["a"] == [1] and values["t"].tolist() == [0, 0]  # type: ignore[attr-defined]


def test_a_copy_on_another_host_has_the_same_structure() -> None:
    """On another host objects have the same numbers if they have the same structure."""
    held = {"a": [{"b": 1}], "c": Slotted()}
    one = take_snapshot([("held", held)], TorchState(), {}).structure()
    assert one == take_snapshot([("held", copy.deepcopy(held))], TorchState(), {}).structure() != -1
    assert take_snapshot([("held", {**held, "d": [1]})], TorchState(), {}).structure() != one
    assert take_snapshot([("held", {Slotted(), Slotted()})], TorchState(), {}).structure() == -1


def shards(model: Any, optimizer: Any) -> None:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    XlaFullyShardedDataParallel(model.to(framework.device()))
    optimizer.step()


def test_an_optimizer_of_a_model_that_is_sharded_is_refused() -> None:
    model = torch.nn.Linear(4, 4)
    before = digest(model)
    error = failed(shards, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "The optimizer `optimizer` was created in the notebook" in said(error) and digest(model) == before
