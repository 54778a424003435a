"""Observing changes nothing, costs no results, and when it fails only itself; the limit of recompiles; what is told
besides compiles. Real runs on XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from tests.backends.torch_xla.loops import sgd  # noqa: E402
from tests.backends.torch_xla.rehearsed import launched  # noqa: E402
from tests.launch.launching import failed, of, run, said  # noqa: E402
from tests.xla_flags import QUICK  # noqa: E402
from tpu_magics.backends.torch.hooks import READ_FUNCTIONS, READS  # noqa: E402
from tpu_magics.backends.torch_xla.observe import hooks, python_values, runtime_stats, xla_dumps  # noqa: E402
from tpu_magics.launch import session  # noqa: E402
from tpu_magics.launch.results import TrainResult  # noqa: E402
from tpu_magics.runs import events, files  # noqa: E402
from tpu_magics.runs.events import Batch, Cache, Compile, Fallback, Precision, Read, Times, Transfer, Warned, only  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
LONG = pytest.mark.long


def lengths(*, read: bool = True, steps: int = 12) -> list[float]:
    """Many shapes, a read in the middle, dropout, Adam: whatever could be disturbed."""
    import torch_xla

    torch.manual_seed(3)
    torch_xla.manual_seed(3)
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        ids = torch.randint(0, 50, (4, 5 + step % 3)).to(device)
        optimizer.zero_grad()
        loss = model(ids).pow(2).mean()
        loss.backward()
        if read and step % 4 == 0:
            losses.append(loss.item())
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """One run of `lengths` for all that look at what such a run tells."""
    return launched(lengths, 1, tmp_path_factory.mktemp("usual"))


def unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker as it is without any hook, and without what the runtime writes for us."""
    monkeypatch.setattr(hooks, "_HOOKS", ())
    monkeypatch.setattr(hooks, "_TENSOR_HOOKS", ())
    monkeypatch.setattr(xla_dumps.XlaDumps, "arrange", lambda _self, _environment: None)


# -- nothing changes --------------------------------------------------------------------------------------------------


def test_losses_are_bit_equal_with_and_without(usual: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usual.recompiles
    unobserved(monkeypatch)
    without = run(lengths)
    assert not without.run.events("compile")
    assert usual.value == without.value
    assert usual.compiles == without.compiles


def keeps_nothing_alive() -> list[int]:
    """Looking at a frame must not keep its tensors: one more that lives is one more result of the next graph."""
    import torch_xla
    from torch_xla import _XLAC

    device = torch_xla.device()
    alive = []
    for step in range(4):
        x = torch.ones(4, 4 + step).to(device)
        names = {"a": (x * 2).sum(), "b": (x * 3).max()}
        for value in names.values():
            value.item()
        del names, value, x
        torch_xla.sync()
        alive.append(_XLAC._xla_counter_value("CreateXlaTensor") - (_XLAC._xla_counter_value("DestroyXlaTensor") or 0))
    return alive


def test_looking_keeps_no_tensor_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = run(keeps_nothing_alive).value
    unobserved(monkeypatch)
    assert observed == run(keeps_nothing_alive).value


def test_a_dict_of_locals_that_the_user_holds_stays() -> None:
    def holds() -> Any:
        import torch_xla

        first = torch.ones(3).to(torch_xla.device())
        held = locals()
        torch_xla.sync()
        (first * 2).sum().item()
        return sorted(held)

    assert {"first", "torch_xla"} <= set(run(holds).value)


def compiled_by_dynamo() -> Any:
    import warnings

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to("xla")

    @torch.compile(backend="openxla")
    def forward(x: Any) -> Any:
        y = model(x)
        return y.to(torch.float32)[:, :1] * 2

    with warnings.catch_warnings(record=True) as warned, torch.no_grad():
        warnings.simplefilter("always")
        values = [forward(torch.ones(4, 8, device="xla") * step).sum().item() for step in range(3)]
    return values, sorted({str(one.message)[:80] for one in warned if "ynamo" in str(one.message)})


def test_torch_compile_does_not_trace_through_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = run(compiled_by_dynamo)
    unobserved(monkeypatch)
    without = run(compiled_by_dynamo)
    assert observed.value == without.value and observed.value[1] == []
    assert observed.compiles == without.compiles


# -- it fails by itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["take", *(pytest.param(one, marks=LONG) for one in ("blocks", "sample"))])
def test_training_goes_on_when_observing_fails(
    broken: str, usual: TrainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("the observer is broken")

    owner = {"take": python_values, "blocks": xla_dumps, "sample": runtime_stats.RuntimeStats}[broken]
    monkeypatch.setattr(owner, broken, fails)
    result = run(lengths)
    assert result.value == usual.value and result.steps == usual.steps == 12
    assert result.recompiles is None or broken == "sample"
    (warned,) = [event for event in only(result.run.events(), Warned) if event.code == "observing-stopped"]
    assert "ZeroDivisionError: the observer is broken" in warned.text and "Training continues" in warned.text
    assert warned.text in result.run.summary().warnings


# -- the limit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [pytest.param(0, marks=LONG), 2])
def test_the_run_stops_at_one_recompile_too_many(limit: int) -> None:
    error = failed(lengths, max_recompiles=limit)
    text = said(error)
    assert f"stopped at recompile {limit + 1}: --max-recompiles allows {limit}" in text
    assert "Recompiles:" in text and text.count("\n  #") == limit + 1
    again = [event for event in only(of(error).events(), Compile) if event.recompile and not event.expected]
    assert len(again) == limit + 1
    assert all(events.CAUSES[event.cause] in text for event in again)


def test_a_run_below_its_limit_is_not_stopped(usual: TrainResult) -> None:
    assert usual.recompiles is not None
    assert run(lengths, max_recompiles=usual.recompiles).recompiles == usual.recompiles


# -- what else is told ------------------------------------------------------------------------------------------------


def test_all_that_a_compile_tells(usual: TrainResult) -> None:
    found = only(usual.run.events(), Compile)
    assert all(event.seconds and event.graph and event.memory for event in found)
    assert len({event.graph for event in found}) == len(found)
    first = next(event for event in found if event.site.code == "torch_xla.sync()")
    assert first.site.path == __file__ and first.site.function == "lengths"
    assert [(one.name, one.shape, one.dtype) for one in first.inputs] == [("ids", (4, 5), "int64")]
    assert set(first.memory or {}) == {"arguments", "outputs", "aliased", "temporaries", "code"}
    for event in found:
        assert events.from_line(events.to_line(event)) == event


def test_reads_in_the_middle_and_after_a_step(usual: TrainResult) -> None:
    cut = {event.site.line: event for event in only(usual.run.events(), Transfer)}
    after = {event.site.line: event for event in only(usual.run.events(), Read)}
    assert [(event.count, event.code) for event in cut.values()] == [(3, "losses.append(loss.item())")]
    assert [event.count for event in after.values()] == [12]
    assert set(cut).isdisjoint(after)
    times = only(usual.run.events(), Times)[-1]
    assert times.compiling and times.waiting is not None and times.waiting > 0


def scans() -> None:
    import torch_xla

    device = torch_xla.device()
    net = torch.nn.GRU(4, 4).to(device)
    for _ in range(2):
        loss = net(torch.ones(2, 1, 4, device=device))[0].sum()
        loss.backward()
        torch_xla.sync()
        loss.item()


def test_reads_beside_a_gru_which_torch_xla_traces() -> None:
    """Its scan computes with tensors without values, and compiles its backward pass by what torch.compile uses."""
    found = {event.site: event for event in only(run(scans).run.events(), Read)}.values()
    assert [(read.count, read.code) for read in found] == [(2, "loss.item()")]


def counts_fallbacks() -> None:
    import torch_xla

    x = torch.arange(6).to(torch_xla.device())
    for _ in range(3):
        x[x > 2].sum()
        torch_xla.sync()


def test_fallbacks_are_counted() -> None:
    found = {event.op: event.count for event in only(run(counts_fallbacks).run.events(), Fallback)}
    assert found == {"aten::nonzero": 3}


def batches(size: int) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(96, 4)), batch_size=size)


def trains_with_batches(accumulate: int) -> None:
    sgd(torch.nn.Linear(4, 1), batches(8), batches_each=accumulate)


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=LONG), 3])
def test_the_effective_batch_is_measured(accumulate: int) -> None:
    batch = only(run(trains_with_batches, accumulate, workers=2).run.events(rank=0), Batch)[-1]
    assert (batch.per_device, batch.accumulation) == (8, accumulate)


def evaluates() -> None:
    import torch_xla

    model = torch.nn.Linear(4, 1)
    sgd(model, batches(8))
    for (x,) in batches(32):
        with torch.no_grad():
            loss = model(x.to(torch_xla.device())).mean()
        torch_xla.sync()
    assert loss.item() == loss.item()


def test_an_evaluation_with_another_batch_size_is_named() -> None:
    first, second = only(run(evaluates).run.events(), Compile)
    assert first.text == "" and not second.recompile
    assert "batches of 32 (training: 8)" in second.text and "training batch size" in second.fix


@pytest.mark.parametrize(
    ("precision", "share"),
    [pytest.param("fp32", 0.0, marks=LONG), ("bf16", 1.0), pytest.param("bf16-downcast", 1.0, marks=LONG)],
)
def test_precision_asked_and_true(precision: str, share: float) -> None:
    told_last = only(run(evaluates, precision=precision).run.events(), Precision)[-1]
    assert (told_last.asked, told_last.share, told_last.agrees) == (precision, share, True)
    assert told_last.source == "--precision" and told_last.ops > 0


def test_precision_that_differs_from_what_was_asked() -> None:
    def plain_loop_asks_too_late() -> None:
        import os

        torch.ones(2).to("xla").sum().item()
        os.environ["XLA_USE_BF16"] = "1"
        evaluates()

    told_last = only(run(plain_loop_asks_too_late).run.events(), Precision)[-1]
    assert told_last.share == 0.0 and not told_last.agrees, told_last


def test_what_the_user_lets_xla_write_stays_theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "my graphs"
    monkeypatch.setenv("XLA_FLAGS", f'{QUICK} --xla_dump_to="{mine}" --xla_dump_hlo_as_text')
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "mine.txt"))
    result = run(lengths)
    found = only(result.run.events(), Compile)
    assert len(found) == result.compiles and list(mine.glob("*before_optimizations.txt"))
    assert "Graph Hash" in (tmp_path / "mine.txt").read_text()
    assert "input-shape" in {event.cause for event in found}  # what Python knew is enough for that
    told_why = [event.text for event in only(result.run.events(), Warned) if event.code == "not-observed"]
    assert len(told_why) == 2 and any("you set PT_XLA_DEBUG" in text for text in told_why)


def started_programs_see() -> list[str | None]:
    import os

    import torch_xla

    names = ("XLA_FLAGS", "PT_XLA_DEBUG_LEVEL", "PT_XLA_DEBUG_FILE", "PT_XLA_DEBUG_MAX_FRAME")
    torch.ones(2).to("xla").mul(2)
    y = torch.ones(3, device="xla") * 2
    torch_xla.sync()
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --mine"
    z = torch.ones(4, device="xla") * 3
    torch_xla.sync()
    assert y is not z
    return [os.environ.get(name) for name in names]


def test_the_variables_are_put_back_once_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    result = run(started_programs_see)
    assert result.value == ["--xla_cpu_enable_fast_math=false --mine", None, None, None]
    found = only(result.run.events(), Compile)
    assert len(found) == result.compiles == 2 and all(event.memory and event.graph for event in found)


def test_without_a_folder_to_write_into_training_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("scratch_path", "spare_scratch_path"):
        monkeypatch.setattr(files.RunFiles, name, property(lambda _self: tmp_path / "file" / "scratch"))
    result = run(lengths)
    assert len(result.run.events("compile")) == result.compiles
    (text,) = [event.text for event in only(result.run.events(), Warned) if event.code == "not-observed"]
    assert "graphs, hashes and sizes are n/a" in text and "Not a directory" in text


def test_the_cache_says_why_it_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session.current, "cache", str(tmp_path))
    (cache,) = only(run(counts_fallbacks).run.events(), Cache)
    assert (cache.hits, cache.path) == (0, str(tmp_path)) and "off on XLA:CPU" in cache.text


# -- hooks come off again ---------------------------------------------------------------------------------------------


def test_torch_has_what_is_wrapped() -> None:
    """Private names, read in torch 2.9 and torch_xla 2.9: this fails clearly when one of them goes away."""
    import torch_xla
    from torch.optim import optimizer
    from torch.utils.data import dataloader
    from torch_xla.distributed import parallel_loader

    needed: list[tuple[Any, str]] = [
        *((torch_xla._XLAC, name) for name in ("_xla_step_marker", "_xla_sync_multi", "_xla_counter_value")),
        *((torch_xla._XLAC, name) for name in ("_xla_metric_data", "_xla_counter_names")),
        (parallel_loader.PerDeviceLoader, "next"),
        (dataloader._BaseDataLoaderIter, "__next__"),
        (optimizer, "register_optimizer_step_pre_hook"),
        (torch.amp.autocast_mode.autocast, "__enter__"),
        (torch.autograd, "backward"),
        *((torch.Tensor, name) for name in READS),
        *((torch, name) for name in READ_FUNCTIONS),
    ]
    assert [name for owner, name in needed if not callable(getattr(owner, name, None))] == []


def test_the_hooks_come_off() -> None:
    import torch_xla

    def names() -> tuple[Any, ...]:
        functions = torch.nn.functional
        of_torch = (torch.Tensor.item, torch.Tensor.to, torch.equal, torch.autograd.backward, functions.embedding)
        return (torch_xla._XLAC._xla_step_marker, *of_torch, functions.cross_entropy)

    def inside(observe: Callable[..., Any]) -> None:
        before = names()
        with observe():
            assert all(one is not other for one, other in zip(names(), before, strict=True))
        assert names() == before

    class Nobody:
        config = SimpleNamespace(tracing=None)

        def __getattr__(self, name: str) -> Any:
            return lambda *_args, **_fields: None

    inside(lambda: hooks.installed(Nobody()))  # type: ignore[arg-type]


# -- eager mode -------------------------------------------------------------------------------------------------------


def eagerly(compiled: bool) -> None:
    import torch
    import torch_xla
    from torch_xla.experimental import eager_mode

    eager_mode(True)
    model = torch.nn.Linear(8, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device="xla")).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        if compiled:
            torch_xla.compile(step)()
        else:
            step()
            torch_xla.sync()


def test_eager_mode_is_told_once_and_its_compiles_are_counted_only() -> None:
    result = run(eagerly, False, workers=1)
    (warned,) = [event.text for event in only(result.run.events(), Warned) if event.code == "eager-mode"]
    assert warned.startswith("torch_xla's eager mode is on: every operation is compiled and run separately")
    assert "eager_mode(False)" in warned and "torch_xla.compile()" in warned
    assert (result.compiles or 0) > 5 and result.recompiles is None
    assert only(result.run.events(), Compile) == [] and result.run.summary().steps == 3


def test_what_is_compiled_as_a_whole_under_eager_mode_is_explained() -> None:
    result = run(eagerly, True, workers=1)
    assert [event.code for event in only(result.run.events(), Warned)] == ["eager-mode"]
    assert only(result.run.events(), Compile) and result.run.summary().steps == 3
