"""What a worker notes: one step for each that a user sees, the compiles of torch_xla, and logged values that cost
nothing. The numbers of compiles are those that torch_xla 2.9 counts without us (measured)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorboardX  # noqa: F401  (it sets an environment variable)
import torch

import tpu_magics
from tests.backends.torch_xla.loops import sgd
from tests.launch.launching import run
from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.observe import measurements
from tpu_magics.backends.torch_xla.observe import counters, hooks
from tpu_magics.backends.torch_xla.observe.observer import TorchObserver
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps
from tpu_magics.backends.torch_xla.precision import TorchPrecisionWatch
from tpu_magics.runs import meter
from tpu_magics.runs.events import Compile, Event, Value, only
from tpu_magics.runs.writer import EventWriter

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 4)


def data(count: int = 84) -> Any:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 16, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (count,), generator=generator))


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)


def series(events: list[Event], name: str) -> list[float | int | str]:
    return [event.value for event in only(events, Value) if event.name == name]


# -- compiles ---------------------------------------------------------------------------------------------------------


def early_read() -> None:
    sgd(torch.nn.Linear(16, 4), [(torch.randn(8, 16),)] * 5, reads=True)


def growing_list() -> None:
    import torch_xla

    device = torch_xla.device()
    w = torch.randn(16, 4).to(device)
    x = torch.randn(8, 16).to(device)
    losses = []
    for _ in range(6):
        losses.append((x @ w).pow(2).mean())
        total = torch.stack(losses).sum()
        torch_xla.sync()
    del total


def last_batch() -> None:
    loader = torch.utils.data.DataLoader(data(84), batch_size=32)
    sgd(torch.nn.Linear(16, 4), (batch for _ in range(3) for batch in loader), loss_of)


def nothing_recompiles() -> None:
    sgd(torch.nn.Linear(16, 4), [(torch.randn(8, 16),) for _ in range(10)])


def python_number() -> None:
    import torch_xla

    device = torch_xla.device()
    w = torch.nn.Parameter(torch.randn(16, 4).to(device))
    x = torch.randn(8, 16).to(device)
    for step in range(6):
        keep = 1 + step % 4
        loss = torch.topk(x @ w, keep, dim=1).values.pow(2).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        torch_xla.sync()


def varying_length() -> None:
    lengths = (7, 9, 12, 7, 15, 9, 20, 12)
    sgd(torch.nn.Embedding(100, 8), [(torch.randint(0, 100, (4, length)),) for length in lengths])


@pytest.mark.parametrize(
    ("case", "compiles", "steps"),
    [
        (early_read, 2, 5),
        (nothing_recompiles, 1, 10),
        (varying_length, 5, 8),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((growing_list, 6, 6), (last_batch, 2, 9), (python_number, 4, 6))
        ),
    ],
)
def test_compiles_are_those_of_the_runtime(case: Callable[[], None], compiles: int, steps: int) -> None:
    result = run(case)
    assert (result.compiles, result.steps) == (compiles, steps)
    assert result.run.summary().compiles == compiles


def test_watching_adds_no_compile_to_a_model_that_comes_home() -> None:
    """Fetching the weights one by one, with a step pending, would compile a graph for each of them."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(8)))

    assert run(sgd, model, [(torch.ones(8, 16),)] * 3).compiles == 1


def leaves_a_step_pending() -> float:
    import torch_xla

    device = torch_xla.device()
    model = net().to(device)
    model(torch.ones(8, 16, device=device)).pow(2).mean().backward()
    return torch.stack([parameter.grad.sum() for parameter in model.parameters()]).sum()


def test_what_is_pending_at_the_end_is_run() -> None:
    value = run(leaves_a_step_pending).value
    assert value.device.type == "cpu" and math.isfinite(float(value))


# -- steps ------------------------------------------------------------------------------------------------------------


def batches() -> Any:
    return torch.utils.data.DataLoader(data(40), batch_size=8)


def with_sync(step: Callable[[Any, Any], None]) -> None:
    import torch_xla

    for x, y in batches():
        step(x.to("xla"), y.to("xla"))
        torch_xla.sync()


def with_mark_step(step: Callable[[Any, Any], None]) -> None:
    import torch_xla.core.xla_model as xm

    for x, y in batches():
        step(x.to("xla"), y.to("xla"))
        xm.mark_step()


def with_barrier(step: Callable[[Any, Any], None]) -> None:
    """xm.optimizer_step(barrier=True) marks the step, and the mark_step behind it has nothing to do."""
    import torch_xla.core.xla_model as xm

    for x, y in batches():
        step(x.to("xla"), y.to("xla"))
        xm.mark_step()
        xm.mark_step()


def with_loader(step: Callable[[Any, Any], None]) -> None:
    """The loader marks the step before it hands out the next batch."""
    import torch_xla
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    for x, y in MpDeviceLoader(batches(), torch_xla.device()):
        step(x, y)


def with_loader_and_sync(step: Callable[[Any, Any], None]) -> None:
    import torch_xla
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    for x, y in MpDeviceLoader(batches(), torch_xla.device()):
        step(x, y)
        torch_xla.sync()


def with_step(step: Callable[[Any, Any], None]) -> None:
    import torch_xla

    for x, y in batches():
        with torch_xla.step():
            step(x.to("xla"), y.to("xla"))


def with_compile(step: Callable[[Any, Any], None]) -> None:
    import torch_xla

    compiled = torch_xla.compile(step)
    for x, y in batches():
        compiled(x.to("xla"), y.to("xla"))


def with_item(step: Callable[[Any, Any], None]) -> None:
    """Reading a value in the middle of a step runs a graph, but is no step."""
    import torch_xla

    for x, y in batches():
        x = x.to("xla")
        assert (x.sum() + 1).item() is not None
        step(x, y.to("xla"))
        torch_xla.sync()


WAYS = (
    *(with_sync, with_mark_step, with_barrier, with_loader, with_loader_and_sync, with_step, with_compile),
    with_item,
)


def trains_in_a_way(way: Callable[[Callable[[Any, Any], None]], None]) -> None:
    import torch_xla.core.xla_model as xm

    model = net().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        if way is with_barrier:
            xm.optimizer_step(optimizer, barrier=True)
        else:
            optimizer.step()

    way(step)


def trains_in_all_ways() -> None:
    for number, way in enumerate(WAYS):
        trains_in_a_way(way)
        tpu_magics.log(way=number)


def test_one_step_for_each_batch() -> None:
    result = run(trains_in_all_ways)
    after = [event.step for event in only(result.run.events(), Value) if event.name == "way"]
    assert after == [5 * (number + 1) for number in range(len(WAYS))]
    assert [event.total for event in result.run.events("steps")][-1] == result.steps == after[-1]


SAME_HOOK = (with_mark_step, with_barrier, with_loader_and_sync, with_item)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.long] if way in SAME_HOOK else []) for way in WAYS]
)
def test_the_limit_holds(way: Callable[..., None]) -> None:
    limited = run(trains_in_a_way, way, steps=2)
    assert (limited.status, limited.steps) == ("stopped", 2)


def with_accelerate(epochs: int, evaluates: bool, accumulate: int = 1) -> Any:
    """The loop of accelerate's examples: a prepared loader, metrics between the batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    loader = torch.utils.data.DataLoader(data(40), batch_size=8, drop_last=True)
    held_out = torch.utils.data.DataLoader(data(16), batch_size=8)
    model, optimizer, loader, held_out, schedule = accelerator.prepare(model, optimizer, loader, held_out, schedule)
    losses = []
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, x, y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather_for_metrics(loss.detach()).mean().item())
        if evaluates:
            model.eval()
            for x, y in held_out:
                with torch.no_grad():
                    predicted = model(x).argmax(dim=1)
                accelerator.gather_for_metrics((predicted, y))[0].sum().item()
    return losses


@pytest.mark.parametrize(("epochs", "evaluates", "steps"), [(1, False, 5), (2, False, 10), (2, True, 14)])
def test_one_step_for_each_batch_that_accelerate_prepared(epochs: int, evaluates: bool, steps: int) -> None:
    result = run(with_accelerate, epochs, evaluates)
    assert result.steps == steps
    assert len(result.value) == 5 * epochs
    assert epochs == 1 or sum(result.value[-5:]) < sum(result.value[:5])


def test_the_limit_holds_with_accelerate() -> None:
    result = run(with_accelerate, 2, True, steps=3)
    assert (result.status, result.steps) == ("stopped", 3)


def counts_nothing() -> None:
    import torch_xla

    torch_xla.device()
    for _ in range(5):
        torch_xla.sync()  # nothing is pending


def test_syncs_without_work_are_no_steps() -> None:
    result = run(counts_nothing)
    assert (result.steps, result.compiles) == (0, 0)


def exchanges() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    weight = torch.ones(4, device=torch_xla.device())
    for _ in range(3):
        weight = weight * 0.5
        xm.mesh_reduce("sum", weight.sum().item(), sum)
        torch_xla.sync()
    xm.rendezvous("saved")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_ranks_exchange_is_no_step(ranks: int) -> None:
    """A rendezvous ends the step of the training; the two graphs of its own are none, and no problem."""
    result = run(exchanges, processes=ranks)
    assert result.steps == 3
    compiles = only(result.run.events(), Compile)
    own = [one.expected for one in compiles if one.rank == 0 and "between the ranks" in one.part]
    assert own == [True, True]


def exchanges_more_each_time() -> None:
    import torch_xla.core.xla_model as xm

    for step in range(3):
        xm.mesh_reduce("losses", [0.5] * 100 * (step + 1), list)


def test_an_exchange_that_grows_is_a_problem() -> None:
    compiles = only(run(exchanges_more_each_time, processes=2).run.events(rank=0), Compile)
    assert [(one.cause, one.expected) for one in compiles[1:]] == [
        ("new-part", True),
        ("input-shape", False),
        ("input-shape", False),
    ]
    assert "another size" in compiles[-1].text and "the same size each time" in compiles[-1].fix


# -- logged values ----------------------------------------------------------------------------------------------------


def logs(what: str) -> dict[str, Any]:
    """Losses, and weights, with different things logged."""
    import torch_xla

    device = torch_xla.device()
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data(320), batch_size=8)):
        optimizer.zero_grad()
        loss = loss_of(model, x.to(device), y.to(device))
        loss.backward()
        optimizer.step()
        if what == "tensor":
            tpu_magics.log(loss=loss, doubled=loss * 2)
        elif what == "number":
            tpu_magics.log(step=step, lr=0.1, name="adam", flag=True)
        torch_xla.sync()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weight": model.weight.detach()}


@pytest.mark.parametrize(
    "read_every", [pytest.param(0.0, marks=pytest.mark.long), 0.25, pytest.param(1000.0, marks=pytest.mark.long)]
)
def test_logging_tensors_changes_nothing(read_every: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "READ_EVERY", read_every)
    without, logged = run(logs, "nothing"), run(logs, "tensor")
    assert torch.equal(logged.value["losses"], without.value["losses"])
    assert torch.equal(logged.value["weight"], without.value["weight"])
    # `doubled` is one more output of the same graph; each tensor alone would be a graph of its own
    assert (logged.compiles, logged.steps) == (without.compiles, without.steps)
    losses = without.value["losses"].tolist()
    assert series(logged.run.events("value"), "loss") == losses
    assert series(logged.run.events("value"), "doubled") == [2 * loss for loss in losses]
    steps = [event.step for event in only(logged.run.events(), Value) if event.name == "loss"]
    assert steps == list(range(40))


def test_numbers_are_recorded_at_once() -> None:
    result = run(logs, "number")
    found = result.run.events("value")
    assert series(found, "step") == list(range(40))
    assert set(series(found, "lr")) == {0.1} and set(series(found, "name")) == {"adam"}
    assert set(series(found, "flag")) == {1}
    assert result.run.summary().values == {"step": 39, "lr": 0.1, "name": "adam", "flag": 1}


def logs_odd_things() -> None:
    import numpy
    import torch_xla

    device = torch_xla.device()
    tpu_magics.log(array=numpy.float32(1.5), one=torch.tensor([2.5]), many=torch.zeros(2, 3))
    tpu_magics.log(device_many=torch.zeros(2, 3, device=device), nan=float("nan"), thing=object, big=2**70)
    tpu_magics.log(bf16=torch.ones(1, device=device, dtype=torch.bfloat16), integer=torch.tensor(3, device=device))
    tpu_magics.log(**{"a b": 1})
    (torch.ones(2, device=device) * 2).sum()
    torch_xla.sync()


def test_odd_values_are_told_in_words() -> None:
    values = run(logs_odd_things).run.summary().values
    assert (values["array"], values["one"], values["bf16"], values["integer"]) == (1.5, 2.5, 1.0, 3)
    assert "[2, 3]" in str(values["many"]) and "[2, 3]" in str(values["device_many"])
    assert values["nan"] == "nan" and values["a b"] == 1 and "object" in str(values["thing"])


def logs_at_the_end() -> None:
    import torch_xla

    total = torch.ones(3, device="xla").sum()
    tpu_magics.log(total=total)  # no sync comes behind it
    torch_xla.device()


def test_what_is_logged_last_arrives() -> None:
    assert run(logs_at_the_end).run.summary().values == {"total": 3.0}


def logs_and_fails() -> None:
    tpu_magics.log(before=1)
    tpu_magics.log(pending=torch.ones(1, device="xla"))
    raise ValueError("no")


def test_what_was_logged_before_a_failure_is_kept() -> None:
    with pytest.raises(tpu_magics.TrainingFailed) as caught:
        run(logs_and_fails)
    assert tpu_magics.find_run(Path(caught.value.run).name).summary().values["before"] == 1


def logs_from_all() -> None:
    import os

    tpu_magics.log(pid=os.getpid())


def test_each_rank_has_its_own_values() -> None:
    result = run(logs_from_all, workers=2)
    pids = {worker["rank"]: worker["pid"] for worker in result.run.info["workers"]}
    assert {event.rank: event.value for event in only(result.run.events(), Value)} == pids


def test_outside_a_worker_log_does_nothing(runs: Path) -> None:
    assert meter._recorder is None
    tpu_magics.log(loss=torch.ones(1), text="x")
    run(logs_from_all)
    assert meter._recorder is None  # the worker's recorder stayed in the worker


def logs_from_loaders() -> int:
    class Logging(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            tpu_magics.log(index=index)
            return index

    return sum(int(batch) for batch in torch.utils.data.DataLoader(Logging(), num_workers=1))


def test_log_in_a_loaders_worker_does_no_harm() -> None:
    result = run(logs_from_loaders)
    assert result.value == 6 and result.run.summary().values == {}


# -- accelerate's way of logging --------------------------------------------------------------------------------------


def logs_with_accelerate(trackers: str, folder: Path) -> list[str]:
    from accelerate import Accelerator

    accelerator = Accelerator(log_with=trackers or None, project_dir=folder)  # for a tracker of TensorBoard
    if trackers:
        accelerator.init_trackers("project", config={"lr": 0.1})
    for step in range(3):
        accelerator.log({"loss": torch.ones(1, device="xla") * step, "lr": 0.1}, step=step)
    accelerator.end_training()
    return [tracker.name for tracker in accelerator.trackers]


@pytest.mark.parametrize("trackers", ["", "all"])
def test_accelerators_log_reaches_the_records(trackers: str, tmp_path: Path) -> None:
    result = run(logs_with_accelerate, trackers, tmp_path)
    assert result.value.count("tpu_magics") == 1
    found = result.run.events("value")
    assert series(found, "loss") == [0.0, 1.0, 2.0] and series(found, "lr") == [0.1] * 3


# -- the observer by itself -------------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[TorchObserver, Callable[[], None]]]:
    """An observer, and a sync at which a graph runs."""
    writer = EventWriter(tmp_path / "rank-0.jsonl", 0)
    precision = TorchPrecisionWatch("", lambda *_args, **_fields: None)
    watcher, executed = TorchObserver(writer, ObserverConfig(), XlaDumps(None), precision), [0]
    watcher.value = lambda name: executed[0] if name == "CachedCompile" else 0
    watcher.cached = watcher.compiled = 0

    def sync() -> None:
        executed[0] += 1
        watcher.after_sync(sys._getframe())

    yield watcher, sync
    writer.close()


@pytest.mark.parametrize(
    ("what", "splits", "waits"),
    [
        ("read backward sync", 1, 0),
        ("backward read sync", 1, 0),
        ("backward sync read read batch backward sync", 0, 2),
        ("backward sync batch read batch read batch read sync", 0, 3),
        ("backward sync batch read sync batch backward read sync", 1, 1),
        ("upload read sync", 1, 0),
        ("backward batch read backward sync", 1, 0),
        ("sample upload backward sync", 0, 1),
        ("upload sample backward sync", 1, 0),
        ("read upload backward sync", 1, 0),
        ("backward sync alone alone upload backward sync", 0, 2),
        ("backward sync alone read backward alone sync", 2, 1),
        ("backward sync alone batch alone sync", 0, 2),
        ("backward sync alone sync", 0, 1),
        ("loss backward sync", 1, 0),
        ("backward sync upload alone backward sync", 1, 0),
    ],
)
def test_a_read_splits_a_training_step_but_not_an_evaluation_or_what_is_between_two_steps(
    tmp_path: Path, what: str, splits: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EventWriter(tmp_path / "rank-0.jsonl", 0)
    precision = TorchPrecisionWatch("", lambda *_args, **_fields: None)
    watcher, executed = TorchObserver(writer, ObserverConfig(), XlaDumps(None), precision), [0]
    watcher.value = lambda name: executed[0] if name == "CachedCompile" else 0
    watcher.cached = watcher.compiled = 0
    frame, tensor = sys._getframe(), torch.ones(2, requires_grad=True)
    loss, other = tensor.mean(), tensor.sum()
    for one in what.split():
        executed[0] += one in ("read", "sample", "alone", "loss", "sync")
        alone = one in ("alone", "loss")  # nothing else is left to run
        monkeypatch.setattr(counters, "only_pending", lambda *_tensors, alone=alone: alone)
        if one == "sync":
            watcher.after_sync(frame)
        elif one == "backward":
            watcher.before_backward((loss * 2).log())
        elif one == "batch":
            watcher.on_device_batch([tensor])
        elif one == "upload":
            watcher.on_upload(tensor)
        else:
            with torch.set_grad_enabled(one != "sample"):
                watcher.on_read(frame, loss if one == "loss" else other, 1.0, 0.0)
    counted = [sum(one.count for one in kind.values()) for kind in (watcher.reads.cutting, watcher.reads.waiting)]
    assert (counted, watcher.stopped) == ([splits, waits], "")
    writer.close()


def test_an_observer_that_is_closed_counts_no_more(watched: tuple[TorchObserver, Callable[[], None]]) -> None:
    watcher, sync = watched
    for _ in range(3):
        sync()
        watcher.after_sync(sys._getframe())
    assert watcher.total_steps == 3
    watcher.close()
    sync()
    assert watcher.total_steps == 3


def test_a_loaders_batch_is_one_step_at_most(watched: tuple[TorchObserver, Callable[[], None]]) -> None:
    watcher, sync = watched
    for _ in range(2):
        watcher.on_device_batch({})
        for _ in range(4):
            sync()
    watcher.on_loader_end()
    sync()
    assert watcher.total_steps == 3


def test_monitoring_stops_once_whatever_hook_fails_first(watched: tuple[TorchObserver, Callable[[], None]]) -> None:
    watcher, sync = watched
    optimizer: Any = object()
    for _ in range(3):
        watcher.before_optimizer_step(optimizer)
        watcher.after_optimizer_step(optimizer)
        watcher.on_host_batch(None, None)
        sync()
    assert "AttributeError" in watcher.stopped and watcher.total_steps == 3, "steps are still counted"
    assert watcher.writer.path.read_text().count("observing-stopped") == 1


def test_hooks_leave_nothing_behind(watched: tuple[TorchObserver, Callable[[], None]]) -> None:
    import torch_xla

    def hooked() -> list[Any]:
        owners = (torch.Tensor, torch.nn.Module, torch.autograd, torch_xla._XLAC, torch.utils.data.dataloader)
        return [list(sys.meta_path), *(dict(vars(owner)) for owner in owners)]

    before = hooked()
    with hooks.installed(watched[0]):
        assert hooked() != before
    assert hooked() == before


def test_the_hooks_of_a_step_do_nothing_when_nothing_ran(
    watched: tuple[TorchObserver, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, sync = watched
    ran: list[str] = []
    monkeypatch.setattr(watcher, "on_run", lambda _frame, _trigger, when="": ran.append(when))
    with hooks.installed(watcher):
        torch.ones((), requires_grad=True).backward()
        assert ran == [] and not watcher.ran()
        watcher.value = lambda name: 5 if name == "CachedCompile" else 0
        torch.ones((), requires_grad=True).backward()
    assert ran == ["before backward", "after backward"] and watcher.ran()
    sync()
    assert not watcher.ran()
