"""What a training function changes besides weights: updated in place in the notebook, or named."""

from __future__ import annotations

import builtins
import collections
import copy
import csv
import dataclasses
import decimal
import functools
import gc
import importlib
import importlib.util
import io
import itertools
import logging
import logging.handlers
import os
import pickle
import queue
import random
import sqlite3
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest
import torch
from torch.nn.utils import parametrize, prune

from tests import framework
from tests.launch.launching import FakeNotebook, digest, failed, fake_notebook, run, said
from tpu_magics.backends.torch.state import TorchState
from tpu_magics.launch import session
from tpu_magics.launch.state import changes, settings
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


class Fitter:
    """A class that keeps its device, as many do."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.device = torch.device("cpu")
        self.config: dict[str, Any] = {}

    def fit(self, make: dict[str, Any]) -> Any:
        self.device = self.config["device"] = framework.device()
        make["step"] = functools.partial(torch.ones, 2, device=self.device)
        make["frozen"] = Frozen({"on": (self.device, 1)})
        self.model.to(self.device)
        return self.device, self.model(inputs.to(self.device)).mean().item()

    def devices(self, made: dict[str, Any]) -> list[str]:
        found = (self.device, self.config["device"], made["frozen"].items["on"][0], made["step"]().device)
        return [one.type for one in found]


def test_a_device_is_the_cpu_here_and_the_device_in_the_next_worker(notebook: FakeNotebook) -> None:
    fitter, made = Fitter(), {}
    device, mean = run(fitter.fit, made).value
    assert device.type == "cpu" and fitter.devices(made) == ["cpu"] * 4
    assert fitter.model(inputs.to(fitter.device)).mean().item() == pytest.approx(mean, rel=1e-4, abs=1e-6)
    second = run(fitter.devices, made)
    assert second.value == [framework.TYPE] * 4 and second.changed == []
    assert fitter.devices(made) == ["cpu"] * 4 and notebook.lines == [] and not framework.runtime_is_up()


class Scale(torch.nn.Parameter):
    """A class of the user's own."""


class Upper(torch.nn.Module):
    """A parametrization of the user's own."""

    def forward(self, weight: Any) -> Any:
        return weight.triu()


def clips(parameter: Any) -> None:
    parameter.grad.clamp_(-1e-3, 1e-3)


class Hung:
    """A model, and what users hang on its parameters."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = torch.nn.Sequential(torch.nn.LSTM(4, 4, batch_first=True), torch.nn.Linear(4, 1))
        self.model.scale = Scale(torch.ones(1))
        self.model.scale.rate = 2.0  # type: ignore[attr-defined]
        weight = self.model[1].weight
        weight.register_hook(lambda gradient: gradient + 0.1 * weight.detach())
        self.handle = self.model[1].bias.register_hook(lambda gradient: gradient * 0)
        self.model[0].weight_ih_l0.register_post_accumulate_grad_hook(clips)
        torch.nn.utils.parametrize.register_parametrization(self.model[1], "weight", Upper())
        self.numbers = {id(one): name for name, one in self.model.named_parameters()}
        self.weak = weakref.ref(self.model[0].bias_hh_l0)

    def train(self, device: str = framework.TYPE) -> list[str]:
        self.model.to(device)
        self.handle.remove()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            out = self.model[1](self.model[0](inputs.to(device).unsqueeze(1))[0].squeeze(1)) * self.model.scale
            ((out - targets.to(device)).pow(2).mean() + self.weak().pow(2).sum()).backward()
            self.model.scale.grad.mul_(self.model.scale.rate)
            optimizer.step()
        self.model.scale.rate = 3.0
        return [self.numbers.get(id(one), type(one).__name__) for one in self.model.parameters()]


def test_what_hangs_on_a_parameter_moves_with_it(notebook: FakeNotebook) -> None:
    ours, plain = Hung(), Hung()
    names = run(ours.train).value
    expected = plain.train("cpu")
    assert all(close(one, other) for one, other in zip(ours.model.parameters(), plain.model.parameters(), strict=True))
    assert names[1:] == expected[1:] and type(ours.model.scale) is Scale
    assert ours.model.scale.rate == 3.0 and notebook.lines == []


def changes_what_cannot_be_pickled(log: Any, numbers: Any, held: dict[str, Any], seen: list[int]) -> None:
    log.write("a line")
    next(numbers)
    held["handle"] = threading.Lock()
    held["fine"] = 1
    seen.append(framework.rank())


def shows_a_widget(held: dict[str, Any]) -> None:
    held["shown"] = ipywidgets.Output()
    held["others"] = [ipywidgets.Output(), 2]
    held["steps"] = 1


def test_a_widget_that_a_worker_has_made_stays_there_without_a_word(notebook: FakeNotebook) -> None:
    held: dict[str, Any] = {"shown": None}
    result = run(shows_a_widget, held)
    assert held == {"shown": None, "steps": 1} and result.left == {"held['others']": "Output of the worker"}
    assert len(notebook.lines) == 1


class Counter(torch.nn.Module):
    """Counts, and has a hash of what it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counter) and self.count == other.count

    def __hash__(self) -> int:
        return hash(("Counter", id(self), self.count))


def counts(counter: Counter) -> None:
    counter.count += 3


def test_a_module_of_a_library_is_updated_also_where_it_has_a_hash_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "__module__", torch.nn.__name__)
    counter = Counter()
    run(counts, counter)
    assert counter.count == 3


def test_what_cannot_be_pickled_is_named(notebook: FakeNotebook, tmp_path: Path) -> None:
    held, seen = {"other": object()}, [7]
    with open(tmp_path / "log", "w+") as log:
        numbers = (number for number in range(3))
        result = run(changes_what_cannot_be_pickled, log, numbers, held, seen, workers=2)
    assert result.left["log"] == "an open file" and result.left["numbers"] == "a generator"
    assert result.left["held['handle']"] == "a lock" and set(held) == {"other", "fine"}
    told, ranks = notebook.lines
    assert told.startswith("Changed in the worker, unchanged here: `log` (an open file), `numbers` (a generator)")
    assert ranks == "Ranks 0 and 1 differ in `seen`: the notebook has the values of rank 0." and seen == [7, 0]


class Lines(logging.Handler):
    """A handler that keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Anything:
    """One object of each of many types, as notebooks have them."""

    def __init__(self) -> None:
        pandas = pytest.importorskip("pandas")
        self.frame = pandas.DataFrame({"loss": [0.0] * 2, "note": [""] * 2})
        self.series = pandas.Series([0.0] * 2)
        self.event, self.local = threading.Event(), threading.local()
        self.local.value = 1
        self.logger = logging.Logger("of the test", logging.INFO)
        self.lines, self.text = Lines(), io.StringIO()
        self.memory = logging.handlers.MemoryHandler(100, target=None)
        for handler in (self.lines, self.memory, logging.StreamHandler(self.text)):
            self.logger.addHandler(handler)
        self.weak = weakref.WeakKeyDictionary({self.lines: 0})
        self.objects = np.array([[], None], dtype=object)
        self.masked = np.ma.masked_array([1.0, 2.0], mask=[False, False])
        self.view = memoryview(bytearray(2))
        self.describe = functools.singledispatch(_nothing)
        self.average: dict[str, float] = {}
        self.cycle, self.pairs = itertools.cycle("ab"), zip([1, 2, 3], "abc", strict=True)
        self.numbers = self._numbers()
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("create table rows (number int)")
        self.cached = functools.lru_cache(_nothing)
        next(self.numbers)

    def _numbers(self) -> Any:
        number = 0
        while True:
            yield number
            number += 1

    def use(self, number: int) -> None:
        self.frame.loc[number, "loss"], self.frame.loc[number, "note"] = 0.5, "better"
        self.series[number] = 2.5
        self.event.set()
        self.local.value += 1
        self.logger.info("epoch %d", number)
        self.weak[self.lines] += 1
        self.objects[0].append(number)
        self.masked.mask[number] = True
        self.view[number] = 7
        self.describe.register(int, lambda _value: "a number")
        self.decorated(number)

    def use_up(self, number: int) -> None:
        for iterator in (self.cycle, self.pairs, self.numbers):
            next(iterator)
        self.database.execute("insert into rows values (1)")
        self.cached(number)

    @torch.no_grad()
    def decorated(self, number: int) -> None:
        self.average[str(number)] = 1.0 * number


def _nothing(_value: Any) -> str:
    return "nothing"


def test_an_object_of_any_type_comes_home_or_is_named(notebook: FakeNotebook, monkeypatch: pytest.MonkeyPatch) -> None:
    have = Anything()
    ids = {name: id(value) for name, value in vars(have).items()}
    monkeypatch.setenv("A_SETTING", "as it was")

    def train() -> None:
        for number in range(2):
            have.use(number)
            have.use_up(number)
        os.environ["A_SETTING"] = "changed"

    result = run(train)
    assert ids == {name: id(value) for name, value in vars(have).items()}
    assert have.frame.to_dict("list") == {"loss": [0.5, 0.5], "note": ["better", "better"]}
    assert have.series.tolist() == [2.5, 2.5] and have.event.is_set() and have.local.value == 3
    assert have.lines.lines == ["epoch 0", "epoch 1"] and have.text.getvalue() == "epoch 0\nepoch 1\n"
    assert [record.getMessage() for record in have.memory.buffer] == have.lines.lines
    assert have.weak[have.lines] == 2 and have.objects[0] == [0, 1] and have.masked.mask.all()
    assert bytes(have.view) == b"\x07\x07" and have.describe(1) == "a number"
    assert have.average == {"0": 0.0, "1": 1.0} and os.environ["A_SETTING"] == "changed"
    names = ("cycle", "pairs", "numbers", "database", "cached")
    assert {f"have.{name}" for name in names} == set(result.left) and len(notebook.lines) == 1


def makes_functions(held: dict[str, Any], optimizer: Any) -> None:
    class Local:
        factor = 2

        def twice(self, value: int) -> int:
            return self.factor * value + len(losses)

    base, nothing = 0.5, None
    held["nothing"] = lambda: nothing
    held["schedule"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: base**step)
    held["object"], held["recursive"] = Local(), None
    optimizer.step()
    held["schedule"].step()


def test_functions_and_classes_of_the_worker_come_home_by_their_code(notebook: FakeNotebook) -> None:
    held: dict[str, Any] = {}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    run(makes_functions, held, optimizer)
    schedule = held["schedule"]
    assert schedule.optimizer is optimizer and schedule.get_last_lr() == [0.5]
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    losses[:] = [0.0]
    assert held["nothing"]() is None
    assert held["object"].twice(4) == 9 and notebook.lines == []


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

    def compared(here: Any, there: Any) -> str:
        found = take_snapshot([("held", there)], TorchState(), {})
        found.compare(take_snapshot([("held", here)], TorchState(), {}).structure())
        return found.mismatched

    assert compared(held, copy.deepcopy(held)) == ""
    other = "the copy with which the worker began has other parts, first at "
    assert compared(held, {**held, "d": [1]}) == f"{other}`held['d']`"
    assert compared(held, {"a": held["a"]}).startswith(other)
    unordered = {Slotted(), Slotted()}
    assert compared(unordered, unordered) == "`held` is a set of objects, and has another order in each process"
    snapshot = take_snapshot([("held", unordered)], TorchState(), {})
    snapshot.compare(snapshot.structure())
    found = changes.Changes(contents={0: [2]})
    found.leave_all(snapshot)
    assert found.left == {"held": snapshot.mismatched} and not found.contents


def shards(model: Any, optimizer: Any) -> None:
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    XlaFullyShardedDataParallel(model.to(framework.device()))
    optimizer.step()


def test_an_optimizer_of_a_model_that_is_sharded_is_refused() -> None:
    model = torch.nn.Linear(4, 4)
    before = digest(model)
    error = failed(shards, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "The optimizer `optimizer` was created in the notebook" in said(error) and digest(model) == before


class Refused:
    """It can be pickled, but not loaded in the notebook."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return _only_in_worker, (os.getpid(), self.error)


def _only_in_worker(pid: int, error: type[BaseException]) -> Any:
    if pid != os.getpid():
        raise error("made for another process")
    return Refused(error)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_what_cannot_be_loaded_does_not_take_the_others_with_it(
    notebook: FakeNotebook, error: type[BaseException]
) -> None:
    shared: dict[str, Any] = {"array": np.zeros(3)}
    held: dict[str, list[Any]] = {"first": [], "second": [], "third": []}

    def train() -> None:
        shared["array"] += 1
        shared["new"] = torch.ones(2)
        held["first"].append((np.ones(2), Refused(error), np.ones(2)))
        held["second"].append(np.ones(2) * 2)
        held["third"].append(held["second"][0])

    result = run(train)
    assert result.left == {
        "held['first']": f"it could not be loaded in the notebook: {error.__name__}: made for another process"
    }
    assert held["first"] == [] and held["second"][0].tolist() == [2, 2] and held["third"][0] is held["second"][0]
    assert shared["array"].tolist() == [1, 1, 1] and shared["new"].tolist() == [1, 1]


class Hooked:
    """A model with hooks of each sort; the first three are removed in the worker, which adds others."""

    def __init__(self) -> None:
        self.model, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.calls: list[str] = []
        self.kept = torch.nn.Linear(1, 1)
        self.kept.register_forward_hook(self.note("old"))
        self.handles = [
            self.model.register_forward_hook(self.note("forward")),
            self.model.weight.register_hook(self.note("gradient")),
            self.optimizer.register_step_post_hook(self.note("step")),
            self.other.register_state_dict_post_hook(lambda *_: self.calls.append("state")),
        ]
        self.added: list[Any] = []

    def note(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)

    def train(self) -> None:
        self.model.to(framework.TYPE)
        for handle in self.handles:
            handle.remove()
        self.added = [
            self.model.register_forward_pre_hook(self.note("before")),
            self.model.bias.register_post_accumulate_grad_hook(self.note("summed")),
        ]
        self.kept.register_forward_hook(self.note("last"))
        self.kept.register_forward_hook(self.note("second"), prepend=True)
        self.kept.register_forward_hook(self.note("first"), prepend=True)

    def step(self) -> list[str]:
        self.calls.clear()
        self.model(inputs).sum().backward()
        self.optimizer.step()
        self.other.state_dict()
        return list(self.calls)


def test_hooks_that_the_function_adds_or_removes_are_so_in_the_notebook(notebook: FakeNotebook) -> None:
    hooked = Hooked()
    assert hooked.step() == ["forward", "gradient", "step", "state"]
    assert run(hooked.train).left == {}
    assert hooked.step() == ["before", "summed"]
    hooked.kept(torch.ones(1))
    assert hooked.calls[-4:] == ["first", "second", "old", "last"]
    later = hooked.model.register_forward_hook(hooked.note("later"))
    assert hooked.step() == ["before", "later", "summed"]
    for handle in (later, *hooked.added):
        handle.remove()
    assert hooked.step() == [] and notebook.lines == []


def test_an_attribute_of_a_parameter_that_a_graph_holds(notebook: FakeNotebook) -> None:
    model = torch.nn.Linear(4, 1)
    held: dict[str, Any] = {"loss": model(inputs).sum()}

    def train() -> None:
        model.to(framework.TYPE)
        held["loss"] = model(inputs.to(framework.TYPE)).sum()
        model.weight.tag = "seen"  # type: ignore[assignment]

    assert run(train).left == {} and model.weight.tag == "seen"  # type: ignore[comparison-overlap]
    assert close(held["loss"], model(inputs).sum())


def test_tensors_of_the_notebook_can_be_resized() -> None:
    """In the function, and afterwards in the notebook: to compare a tensor leaves it as it is."""
    held = [torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, 2).t(), torch.zeros(0)]
    kept, typed = torch.ones(2), torch.ones(2).untyped_storage()

    def train() -> None:
        for one in held:
            one.resize_(5).fill_(1)
        torch.add(torch.ones(3), 1, out=held[-1])

    assert run(train).left == {}
    assert [one.tolist() for one in held] == [[1.0] * 5] * 3 + [[2.0] * 3]
    kept.resize_(4)
    typed.resize_(64)
    held[0].resize_(7)


class Twice(torch.optim.SGD):
    """An optimizer with another one in it, as SAM has."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.inner = torch.optim.SGD(self.param_groups, lr=lr)
        self.rho = 0.5


def test_an_optimizer_that_the_function_made_has_its_own_attributes() -> None:
    """torch's `__getstate__` leaves them out: LBFGS without its parameters cannot step."""

    def train() -> Any:
        model = torch.nn.Linear(4, 1).to(framework.TYPE)
        twice, lbfgs = Twice(model.parameters(), 0.1), torch.optim.LBFGS(model.parameters())
        twice.register_step_post_hook(lambda *_: None)
        scheduler = torch.optim.lr_scheduler.StepLR(twice, 1)
        model(inputs.to(framework.TYPE)).sum().backward()
        twice.step()
        scheduler.step()
        framework.sync()
        return model, twice, lbfgs, scheduler

    model, twice, lbfgs, scheduler = run(train).value
    assert twice.rho == 0.5 and twice.inner.param_groups[0]["params"][0] is model.weight
    assert scheduler.optimizer is twice and twice.param_groups[0]["lr"] == pytest.approx(0.01)
    model(inputs).square().mean().backward()
    twice.step()
    lbfgs.step(lambda: model(inputs).square().mean())


class Accessed:
    def __init__(self) -> None:
        made.append(1)

    def __getitem__(self, index: int) -> int:
        made.append(index)
        return index

    @property
    def value(self) -> int:
        return 0

    @value.setter
    def value(self, new: int) -> None:
        made.append(new)

    @functools.cached_property
    def slow(self) -> int:
        made.append(4)
        return 4


made: list[int] = []


def test_what_special_methods_and_setters_change() -> None:
    def train() -> int:
        one = Accessed()
        one.value = 3
        return one[2] + one.slow

    made.clear()
    assert run(train).value == 6
    assert made == [1, 3, 2, 4]


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__


def test_common_python_that_was_lost_or_ended_the_run(notebook: FakeNotebook) -> None:
    """Methods in C of a list, in a partial; classes whose attributes are keys; methods that a class gets; weak sets;
    exceptions with an `__init__` of their own; another module without weights in the place of one."""

    class Given(Exception):
        def __init__(self, code: int, detail: str) -> None:
            super().__init__(f"{code}")
            self.code, self.detail = code, detail

    class Patched:
        def name(self) -> str:
            return "old"

    log: list[int] = []
    append, settings, errors = functools.partial(log.append), Attributes(a=1), []
    patched, seen = Patched(), weakref.WeakSet[Any]()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Dropout(0.5))

    def train() -> None:
        append(1)
        settings["b"] = 2
        errors.append(Given(1, "more"))
        type(patched).name = lambda self: "new"  # type: ignore[method-assign]
        type(patched).__len__ = lambda self: 7  # type: ignore[attr-defined]
        seen.add(patched)
        model[1], model[2] = torch.nn.Tanh(), torch.nn.Dropout(0.1)
        np.set_printoptions(precision=3)

    digits = np.get_printoptions()["precision"]
    try:
        result = run(train)
        assert np.get_printoptions()["precision"] == 3
    finally:
        np.set_printoptions(precision=digits)
    assert (
        log == [1]
        and settings == {"a": 1, "b": 2}
        and patched.name() == "new"
        and len(patched) == 7
        and list(seen) == [patched]
    )
    assert [(error.code, error.detail) for error in errors] == [(1, "more")]
    assert model[2].p == 0.1 and isinstance(model[1], torch.nn.Tanh) and result.left == {}


# -- what a model consists of -----------------------------------------------------------------------------------------
class Doubled(torch.nn.Linear):
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


class Halved(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x / 2


class Adapted(torch.nn.Module):
    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.low = torch.nn.Parameter(torch.ones(base.out_features, base.in_features) / 10)

    def forward(self, x: Any) -> Any:
        return self.base(x) + x @ self.low.T


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.middle = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        normalized = torch.nn.BatchNorm1d(4, track_running_stats=False)  # torch_tpu 0.2.0 updates no statistics
        self.rest = torch.nn.Sequential(normalized, torch.nn.Linear(4, 4))
        self.head = torch.nn.Linear(4, 3)
        self.copied, self.more = torch.nn.Linear(4, 4), torch.nn.ModuleList()
        self.copied.weight = self.rest[1].weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.rest(self.middle(self.body(x)))))


def new_head(model: Deep) -> None:
    model.head = torch.nn.Linear(4, 2)


def equal_head(model: Deep) -> None:
    model.head = torch.nn.Linear(4, 3)


def more_rows(model: Deep) -> None:
    model.head.weight = torch.nn.Parameter(torch.cat([model.head.weight.detach(), torch.zeros(1, 4)]))
    model.head.bias.data = torch.zeros(4)
    model.head.out_features = 4


def fewer(model: Deep) -> None:
    model.rest = model.rest[:1]
    del model.middle
    model.middle = torch.nn.Identity()


def exchanged(model: Deep) -> None:
    model.body, model.middle = model.middle, model.body


def adapters(model: Deep) -> None:
    model.head, model.rest[1] = Adapted(model.head), Adapted(model.rest[1])  # type: ignore[assignment, arg-type]


def pruned(model: Deep) -> None:
    prune.l1_unstructured(model.head, "weight", 0.3)
    prune.random_unstructured(model.body, "weight", 0.3)
    prune.remove(model.body, "weight")


def parametrized(model: Deep) -> None:
    parametrize.register_parametrization(model.middle, "weight", Halved())


def another_class(model: Deep) -> None:
    model.head.__class__ = Doubled
    model.rest = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model.rest)
    model.register_buffer("seen", torch.ones(2))
    model.register_buffer("cache", torch.ones(2), persistent=False)


def tied(model: Deep) -> None:
    model.middle.weight = model.body.weight


def untied(model: Deep) -> None:
    model.copied.weight = torch.nn.Parameter(model.rest[1].weight.detach().clone())  # type: ignore[union-attr]


def filled(model: Deep) -> None:
    model.more.append(torch.nn.Tanh())
    model.more.append(torch.nn.Linear(2, 2))


def two_steps(model: Any, optimizer: Any, device: str) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()
        if device == framework.TYPE:
            framework.sync()


@pytest.mark.parametrize(
    "change",
    [
        *(new_head, equal_head, more_rows, fewer, exchanged, adapters, pruned, parametrized, another_class),
        *(tied, untied, filled),
    ],
)
def test_a_model_consists_of_what_the_function_made_of_it(change: Callable[[Any], None]) -> None:
    def train(model: Any, device: str) -> None:
        torch.manual_seed(3)
        change(model)
        model.to(device)
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
        two_steps(model, optimizer, device)

    torch.manual_seed(0)
    model, plain = Deep(), Deep()
    plain.load_state_dict(model.state_dict())
    parts, there = dict(model.named_modules()), dict(plain.named_modules())
    train(plain, "cpu")
    result = run(train, model, framework.TYPE)
    assert result.left == {} and "model" in result.run.summary().models
    assert str(model) == str(plain)
    assert [type(one).__name__ for one in model.modules()] == [type(one).__name__ for one in plain.modules()]
    trained, wanted = model.state_dict(), plain.state_dict()
    assert list(trained) == list(wanted)
    assert [*dict(model.named_parameters())] == [*dict(plain.named_parameters())]  # of tied ones the first name
    for name, value in trained.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
    assert [one.requires_grad for one in model.parameters()] == [one.requires_grad for one in plain.parameters()]
    torch.testing.assert_close(model(inputs), plain(inputs), rtol=1e-4, atol=1e-5)
    same = {name: any(part is one for one in plain.modules()) for name, part in there.items()}
    assert same == {name: any(part is one for one in model.modules()) for name, part in parts.items()}


def test_a_part_that_was_trained_before_it_was_taken_out_has_its_weights() -> None:
    """It is held by another name, and its weights by an optimizer."""

    def train(model: Any, optimizer: Any, device: str) -> None:
        model.to(device)
        two_steps(model, optimizer, device)
        model.head = torch.nn.Linear(4, 5)

    torch.manual_seed(0)
    heads = []
    for device in ("cpu", framework.TYPE):
        torch.manual_seed(0)
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        head, untrained = model.head, model.head.weight.detach().clone()
        if device == "cpu":
            train(model, optimizer, device)
        else:
            assert run(train, model, optimizer, device).left == {}
        assert model.head is not head and any(one is head.weight for one in optimizer.param_groups[0]["params"])
        assert not torch.equal(head.weight, untrained) and head.weight.device.type == "cpu"
        heads.append(head)
    torch.testing.assert_close(heads[0].state_dict(), heads[1].state_dict(), rtol=1e-4, atol=1e-5)


# -- settings of the process ------------------------------------------------------------------------------------------
def test_options_of_libraries_are_set_and_put_back() -> None:
    def now() -> tuple[object, ...]:
        return (
            sys.getrecursionlimit(),
            np.geterr()["under"],
            decimal.getcontext().prec,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
            gc.isenabled(),
            gc.get_threshold(),
            sys.getswitchinterval(),
            torch.backends.cudnn.benchmark,
            hasattr(builtins, "of_a_test"),
            [(logger.level, logger.propagate) for logger in (known, logging.getLogger("tpu_magics_test.new"))],
            *mask(),
        )

    def mask() -> list[str]:
        return [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")]

    known = logging.getLogger("tpu_magics_test.known")

    at_first, before = now(), settings.current()
    with decimal.localcontext(), np.errstate(), torch.enable_grad():
        sys.setrecursionlimit(at_first[0] + 100)  # type: ignore[operator]
        np.seterr(under="raise")
        decimal.getcontext().prec = 7
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("high")
        gc.disable()
        gc.set_threshold(701, 11, 12)
        sys.setswitchinterval(0.01)
        torch.backends.cudnn.benchmark = True
        os.umask(0o077)
        vars(builtins)["of_a_test"] = 3
        known.setLevel(logging.DEBUG)
        logging.getLogger("tpu_magics_test.new").propagate = False
        changed, new = settings.changes(before), now()
        assert changed is not None
        for name, values in changed.options.items():
            settings._set_option(name, {key: before.options[name].get(key, settings._NEVER_SET) for key in values})
        assert now() == at_first and settings.changes(before) is None
        undo = settings.apply(pickle.loads(pickle.dumps(changed)), {})
        assert now() == new
        undo()
        assert now() == at_first


def test_handlers_and_objects_among_the_builtins_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_OPTIONS", {name: settings._OPTIONS[name] for name in ("builtins", "logging")})
    before, logger = settings.current(), logging.getLogger("tpu_magics_test.handlers")
    monkeypatch.setattr(builtins, "of_a_test", np.ones(2), raising=False)
    logger.addHandler(logging.NullHandler())
    changed = settings.changes(before)
    logger.handlers.clear()
    assert changed is not None and changed.lost == {
        "builtins: of_a_test": "a ndarray",
        "logging: tpu_magics_test.handlers handlers": "a handler belongs to its process",
    }


def test_an_option_of_a_library_that_the_function_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"changed": 2, "as imported": 1}
    options = {"some": ("decimal", lambda _module: values, lambda _module, new: values.update(new))}
    monkeypatch.setattr(settings, "_OPTIONS", options)
    monkeypatch.setattr(settings, "_AFTER_IMPORT", {"some": lambda _module: {"changed": 1, "as imported": 1}})
    before = dataclasses.replace(settings.current(), options={})
    changed = settings.changes(before)
    assert changed is not None and {*changed.options["some"]} == {"changed"}
    values["changed"] = 1
    settings.apply(changed, {})
    assert values["changed"] == 2


@pytest.mark.parametrize("name", ["matplotlib", "pandas"])
def test_the_options_after_the_import_are_those_of_the_library(name: str) -> None:
    if importlib.util.find_spec(name) is None:  # where TorchTPU is
        return
    module = importlib.import_module(name)
    assert settings._after_import(name).keys() >= settings._OPTIONS[name][1](module).keys()  # type: ignore[union-attr]


class Recorded(np.ndarray):
    """An array with an attribute."""


def test_masks_and_attributes_of_arrays_and_tensors(notebook: FakeNotebook) -> None:
    masked, bad = np.ma.array([1, 2], mask=[0, 1]), np.ma.masked_invalid([1.0, np.nan, 3.0])
    recorded, tensor, other = np.arange(3.0).view(Recorded), torch.zeros(3), torch.zeros(2)
    vars(recorded)["note"], vars(tensor)["tag"] = "old", "old"

    def changes_them() -> None:
        masked[0], bad[2] = 7, 5.0
        recorded[0] += 1
        tensor.add_(1)
        vars(recorded)["note"], vars(tensor)["tag"], vars(other)["tag"] = "new", "new", "made"

    assert run(changes_them).left == {} and notebook.lines == []
    assert (str(masked), str(bad), bad.mean()) == ("[7 --]", "[1.0 -- 5.0]", 3.0)
    assert recorded.tolist() == [1, 1, 2] and vars(recorded)["note"] == "new"
    assert tensor.tolist() == [1, 1, 1] and vars(tensor)["tag"] == "new" and vars(other)["tag"] == "made"


def test_a_file_behind_a_writer(tmp_path: Path, notebook: FakeNotebook) -> None:
    """The function reaches the writer only; the file is written once, and in order."""
    file, dump = (tmp_path / "a.csv").open("w", newline=""), (tmp_path / "b.pkl").open("wb")
    writer, pickler = csv.writer(file), pickle.Pickler(dump)
    writer.writerow(["epoch", "loss"])
    run(lambda: (writer.writerow([0, 0.5]), pickler.dump({"a": 1}), None)[-1])
    writer.writerow([1, 0.25])
    for one in (file, dump):
        one.close()
    assert (tmp_path / "a.csv").read_text() == "epoch,loss\n0,0.5\n1,0.25\n"
    assert notebook.lines == []
    assert pickle.loads((tmp_path / "b.pkl").read_bytes()) == {"a": 1}


@pytest.mark.parametrize("first", [True, False])
def test_gradients_are_as_after_the_last_step(first: bool) -> None:
    """`zero_grad()` at the beginning of a step leaves them, and the next backward() adds to them."""
    torch.manual_seed(0)
    model, held = torch.nn.Linear(4, 1), torch.ones(4, requires_grad=True)
    plain, plain_held = copy.deepcopy(model), torch.ones(4, requires_grad=True)

    def step(model: Any, held: Any, device: str) -> None:
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            if first:
                optimizer.zero_grad()
            (model(inputs.to(device)).pow(2).sum() + held.pow(2).sum().to(device)).backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()

    for _ in range(2):
        run(step, model, held, framework.TYPE)
        step(plain, plain_held, "cpu")
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) == (not first)
            assert one.grad is None or torch.allclose(one.grad, other.grad, rtol=1e-5)
        assert held.grad is not None and held.grad.tolist() == plain_held.grad.tolist()  # type: ignore[union-attr]
    model(inputs).sum().backward()
    run(lambda: model.zero_grad())
    assert all(one.grad is None for one in model.parameters())


def test_what_was_computed_in_a_worker_has_no_graph(notebook: FakeNotebook) -> None:
    """backward() on it is an error; as a leaf it would do nothing, without a word."""
    model = torch.nn.Linear(4, 1)
    held: dict[str, Any] = {}

    def computes() -> tuple[Any, Any]:
        held["loss"] = model(inputs).sum()
        model.to(framework.TYPE)
        return model(inputs.to(framework.TYPE)).sum(), torch.ones(2, requires_grad=True)

    loss, leaf = run(computes).value
    for one in (loss, held["loss"]):
        with pytest.raises(RuntimeError, match="does not require grad"):
            one.backward()
    assert leaf.requires_grad


def test_a_class_that_cannot_come_takes_nothing_with_it(notebook: FakeNotebook) -> None:
    """Found only as a tensor of that class is pickled; and a generic class, which can come."""
    model, held = torch.nn.Linear(2, 1), dict[str, Any]()
    before = digest(model)

    def trains() -> None:
        class Tagged(torch.Tensor):
            __slots__ = ()

        kind = typing.TypeVar("kind")

        class Base(torch.nn.Module, typing.Generic[kind]):
            pass

        with torch.no_grad():
            model.weight.add_(1)
        held.update(tagged=torch.ones(2).as_subclass(Tagged), number=3, made=Base())

    result = run(trains)
    assert digest(model) != before and held["number"] == 3 and type(held["made"]).__name__ == "Base"
    assert list(result.left) == ["held['tagged']"] and "tagged" not in held


def fill(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.fill_(3)


@pytest.mark.parametrize(
    "edit", [fill, lambda weight: weight.data.fill_(3), lambda weight: weight.detach().numpy().fill(3)]
)
def test_weights_that_the_notebook_changed_during_a_background_run(
    notebook: FakeNotebook, edit: Callable[[torch.Tensor], Any]
) -> None:
    """In each way: torch counts the first only."""
    model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def trains() -> None:
        for one in (model, other):
            with torch.no_grad():
                one.weight.fill_(5)

    result = run(trains, background=True)
    edit(model.weight)
    result.wait()
    assert (model.weight.item(), other.weight.item()) == (3, 5)
    assert result.left == {"model": "changed in the notebook during the run"}


@pytest.mark.parametrize("file", ["/home/user/of_the_user.py", None])  # None: a module that the notebook made
def test_names_that_the_notebook_gave_to_other_objects_during_a_background_run(
    notebook: FakeNotebook, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    main, module = sys.modules["__main__"], types.ModuleType("of_the_user")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "of_the_user", module)
    module.seen = []  # type: ignore[attr-defined]
    for name, value in (("hist", []), ("kept", []), ("gone", []), ("of_the_user", module)):
        monkeypatch.setattr(main, name, value, raising=False)
    exec("def trains():\n    for one in (hist, kept, gone, of_the_user.seen): one.append(1)\n", vars(main))
    before = main.hist  # type: ignore[attr-defined]
    result = run(vars(main).pop("trains"), background=True)
    main.hist, module.seen = ["new"], ["new"]  # type: ignore[attr-defined]
    monkeypatch.delattr(main, "gone")
    result.wait()
    assert (main.hist, main.kept, module.seen, before) == (["new"], [1], ["new"], [1])  # type: ignore[attr-defined]
    assert set(result.left) == {"hist", "gone", "of_the_user.seen"}
    assert result.changed == ["kept", "of_the_user"]


def of_every_sort(given: int = 1, *, named: int = 2) -> tuple[int, int]:
    return given, named


gone_from_globals = 1


def test_defaults_queues_and_what_globals_loses(notebook: FakeNotebook, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for number in range(3):
        waiting.put([number])
    monkeypatch.setitem(globals(), "gone_from_globals", 1)
    monkeypatch.setattr(of_every_sort, "__defaults__", (1,))
    monkeypatch.setattr(of_every_sort, "__kwdefaults__", {"named": 2})

    def changes_them() -> None:
        of_every_sort.__defaults__ = (3,)
        of_every_sort.__kwdefaults__ = {"named": 4}
        waiting.get()
        waiting.put([9])
        del globals()["gone_from_globals"]
        globals()["made_in_globals"] = 5

    assert run(changes_them).left == {} and notebook.lines == []
    assert of_every_sort() == (3, 4)
    assert [waiting.get_nowait() for _ in range(waiting.qsize())] == [[1], [2], [9]]
    assert "gone_from_globals" not in globals() and globals().pop("made_in_globals") == 5


class Unloadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_an_option_that_cannot_be_set_is_named_and_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that cannot be compared, pickled or loaded."""
    values: dict[str, Any] = {"array": np.ones(2), "lambda": 0, "unloadable": 0, "refused": 0, "good": 0}

    def put(_module: Any, new: Mapping[str, Any]) -> None:
        if "refused" in new:
            raise ValueError("this version has none")
        values.update(new)

    monkeypatch.setattr(settings, "_OPTIONS", {"some": ("sys", lambda _module: values, put)})
    before = settings.current()
    at_first = dict(values)
    values.update({"array": np.zeros(2), "lambda": lambda: 0, "unloadable": Unloadable(), "refused": 1, "good": 1})
    changed = settings.changes(before)
    assert changed is not None and {*changed.options["some"]} == {"array", "unloadable", "refused", "good"}
    values.update(at_first)
    left: dict[str, str] = {}
    undo = settings.apply(changed, left)
    assert values["good"] == 1 and not values["array"].any()
    assert {*left} == {"some: lambda", "some: unloadable", "some: refused"} and "none" in left["some: refused"]
    undo()
    assert values["good"] == 0 and values["array"].all()


@pytest.mark.parametrize(
    ("now", "here", "expected"),
    [
        (["x", "a", "b"], ["a", "b"], ["x", "a", "b"]),
        (["a", "b", "y", "z"], ["a", "b"], ["a", "b", "y", "z"]),
        (["a", "x", "b"], ["a", "b"], ["a", "b", "x"]),
        (["b"], ["a", "b"], ["b"]),
        (["y"], ["a", "b"], ["y"]),
        (["x", "a", "b", "y"], ["x", "c", "b"], ["x", "c", "b", "y"]),
    ],
)
def test_new_entries_of_the_path_stand_where_they_were_put(
    now: list[str], here: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["a", "b"])
    before = settings.current()
    sys.path[:] = now
    changed = settings.changes(before)
    assert changed is not None
    sys.path[:] = here
    undo = settings.apply(changed, {})
    assert sys.path == expected
    undo()
    assert sys.path == here


# -- objects whose own code must not run -------------------------------------------------------------------------------


def refuses(*_arguments: Any, **_named: Any) -> Any:
    raise ConnectionError("the settings are not configured")


class Lazy:
    """As a proxy that loads its object with its first use."""

    __class__ = property(refuses)  # type: ignore[assignment]
    __getattr__ = __bool__ = __len__ = __iter__ = __call__ = refuses
    __eq__ = __hash__ = __repr__ = refuses  # type: ignore[assignment]


class ClosedDict(dict[str, Any]):
    items = keys = values = get = __iter__ = __len__ = __getitem__ = __contains__ = refuses  # type: ignore[assignment]


class ClosedList(list[Any]):
    __iter__ = __len__ = __getitem__ = __contains__ = refuses  # type: ignore[assignment]


def claims(kind: type) -> Any:
    """An object that says it is of this class, and whose items have no end."""
    own = {"__class__": property(lambda _self: kind), "items": lambda _self: itertools.repeat((1, 2))}
    return type("Claims", (), {**own, "__len__": lambda _self: 10**9, "__getitem__": lambda _self, at: at})()


def without_own_code() -> list[Any]:
    claimed = (dict, list, torch.Tensor, torch.nn.Module, type(refuses), type(os))
    return [Lazy(), ClosedDict(a=1), ClosedList([1]), *map(claims, claimed)]


@pytest.mark.parametrize("number", range(len(without_own_code())))
def test_objects_whose_own_code_must_not_run(number: int, notebook: FakeNotebook) -> None:
    odd, model = without_own_code()[number], torch.nn.Linear(1, 1)
    box = types.SimpleNamespace()
    box.odd, box.listed, box.named = odd, [odd], {"odd": odd}
    before = digest(model)

    def trains(_argument: Any) -> Any:
        device = framework.device()
        model.to(device)
        with torch.no_grad():
            model.weight.add_(1)
        framework.sync()
        box.number = 3
        return odd

    run(trains, odd)
    assert digest(model) != before and box.number == 3 and not any("Monitoring" in line for line in notebook.lines)


def test_a_container_without_tensors_is_filled() -> None:
    filled, kinds = torch.nn.ModuleList(), torch.nn.ModuleList([torch.nn.ReLU()])

    def train() -> None:
        filled.append(torch.nn.Linear(2, 2).to(framework.TYPE))
        kinds.append(torch.nn.Tanh())

    result = run(train)
    assert [type(one).__name__ for one in (*filled, *kinds)] == ["Linear", "ReLU", "Tanh"] and result.left == {}
    assert next(filled.parameters()).device.type == "cpu"


def test_a_weak_proxy_is_one_of_the_same_object() -> None:
    model, holder = torch.nn.Linear(2, 2), types.SimpleNamespace()

    def train() -> None:
        holder.model, holder.gone = weakref.proxy(model), weakref.proxy(Doubled(1, 1))
        model.to(framework.TYPE).weight.data.fill_(3)

    assert run(train).left == {}
    assert type(holder.model) in weakref.ProxyTypes and holder.model.weight is model.weight
    assert type(holder.gone) in weakref.ProxyTypes
