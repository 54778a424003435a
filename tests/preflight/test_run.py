"""The road of a preflight: real functions, really traced, and compiled by the TPU's own compiler."""

from __future__ import annotations

import inspect
import os
import pydoc
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests import overlay
from tests.launch.launching import said
from tpu_magics.backends.lowered import LoweredGraph, TraceResult
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.panel.preflight import to_text
from tpu_magics.preflight.compilation import CompileProgress
from tpu_magics.preflight.fit import FitResult, Size
from tpu_magics.preflight.pipeline import TrainingCall
from tpu_magics.preflight.report import Preflight
from tpu_magics.preflight.run import Callbacks, SearchInterrupted, preflight, require_change, require_steps
from tpu_magics.runs import preflights

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_cache")]

LENGTH, HIDDEN = 2048, 4096  # so that one row more takes 32 MiB of HBM


def small(batch: int = 8, steps: int = 4, lr: float = 0.1) -> None:
    """AdamW: its first step has another graph than the later ones, and needs less."""
    import torch
    import torch_xla

    model = torch.nn.Linear(8, 2).to(torch_xla.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.zeros(batch, 8).to(torch_xla.device())).mean().backward()
        optimizer.step()
        torch_xla.sync()


def wide(batch: int, rows: int | None = None) -> None:
    """A small program with large activations. `rows`: of data, where there is an end to them."""
    import torch
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(8, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4 if rows is None else rows // batch):
        optimizer.zero_grad()
        x = torch.zeros(batch, 8).to(device)[:, None].expand(-1, LENGTH, -1)
        model(x).mean().backward()
        optimizer.step()
        torch_xla.sync()


@dataclass
class Heard:
    """What a preflight told on its way."""

    lines: list[str] = field(default_factory=list)
    done: list[CompileProgress] = field(default_factory=list)
    kept: list[CompileProgress] = field(default_factory=list)

    def progress(self, now: CompileProgress) -> None:
        self.done += [now] * (now.state == "done")
        self.kept += [now] * (now.state == "kept")

    @property
    def telling(self) -> Callbacks:
        return Callbacks(self.progress, self.lines.append)


# -- one size ---------------------------------------------------------------------------------------------------------


def test_targets_with_as_many_ranks_have_one_trace(runs: Path) -> None:
    heard = Heard()
    found = preflight(small, target="v5e-1,v6e-1", callbacks=heard.telling)
    assert heard.lines == ["small: tracing for one rank"]
    assert [(one.name, one.status) for one in found.results] == [("v5litepod-1", "fits"), ("v6e-1", "fits")]
    assert found.results[0].traced is found.results[1].traced and found.fits and found.fit == ()
    assert [one.graph.steady for one in found.results] == [True, True]
    assert found["v5e-1"].traced.batch == 8 and len(found["v5e-1"].compiled) == 2
    noted = preflights.newest()
    assert {(one.function, one.target, one.status) for one in noted} == {
        ("small", "v5litepod-1", "fits"),
        ("small", "v6e-1", "fits"),
    }
    assert len({one.t for one in noted}) == 1 and runs.is_dir()
    memory = found["v5e-1"].worst.memory
    assert memory is not None and memory.needed in {one.needed for one in noted}


def test_the_second_time_compiles_nothing(tmp_path: Path) -> None:
    first, again, anew = Heard(), Heard(), Heard()
    once = preflight(small, target="v5e-1", callbacks=first.telling)
    twice = preflight(small, 8, target="v5litepod-1", kwargs={"steps": 3}, callbacks=again.telling)
    assert (len(first.done), len(first.kept)) == (2, 0) and (len(again.done), len(again.kept)) == (0, 2)
    assert once["v5e-1"].steady.memory == twice["v5e-1"].steady.memory and twice["v5e-1"].steady.kept
    before = sorted((tmp_path / "cache").rglob("*"))
    preflight(small, target="v5e-1", kept=False, callbacks=anew.telling)
    assert len(anew.done) == 2 and sorted((tmp_path / "cache").rglob("*")) == before


def test_precision_is_that_of_the_call_or_of_the_session() -> None:
    session.initialise(precision="bf16")
    assert preflight(small, target="v5e-1")["v5e-1"].traced.precision == "bf16"
    asked = preflight(small, target="v5e-1", precision="fp32")["v5e-1"]
    assert asked.traced.precision == "fp32" and asked.bf16_share == 0


def test_ranks_are_those_of_the_target_or_as_asked() -> None:
    heard = Heard()
    found = preflight(small, target="v5e-4", callbacks=heard.telling)
    assert found["v5e-4"].graph.replicas == 4 and heard.lines == ["small: tracing for 4 ranks"]
    assert preflight(small, target="v5e-4", processes=1)["v5e-4"].graph.replicas == 1


def test_spmd_is_that_of_the_call_or_of_the_session() -> None:
    heard = Heard()
    preflight(small, target="v5e-4", spmd=True, callbacks=heard.telling)
    session.initialise(spmd=8)
    preflight(small, target="v5e-4", callbacks=heard.telling)
    preflight(small, target="v5e-4", spmd=False, callbacks=heard.telling)
    devices = "small: tracing for one process with 4 devices"
    assert heard.lines == [devices, devices, "small: tracing for 4 ranks"]


def test_a_mesh_is_also_that_of_the_result() -> None:
    """Of each target the first that has its devices."""
    heard = Heard()
    found = preflight(small, target="v5e-4,v6e-8", mesh=("data=4", "model=4", "data=8"), callbacks=heard.telling)
    traces = [line.rpartition("with ")[2] for line in heard.lines if "tracing" in line]
    assert traces == ["4 devices", "8 devices", "4 devices"], "each mesh once"
    assert [(one.name, dict(one.graph.mesh), one.devices) for one in found.results] == [
        ("v5litepod-4", {"data": 4, "model": 1}, 4),
        ("v6e-8", {"data": 8, "model": 1}, 8),
    ]
    assert found.fits and [group.name for group in found["v6e-8"].profile.transfers] == ["data"]
    assert [(one.variant.label, [each.name for each in one.results]) for one in found.compared] == [
        ("data=4", ["v5litepod-4"]),
        ("model=4", ["v5litepod-4"]),
        ("data=8", ["v6e-8"]),
    ]
    assert found["v6e-8"].graph.hash == found.compared[2].results[0].graph.hash


def test_a_search_is_in_one_mesh() -> None:
    with pytest.raises(TpuMagicsError, match="--fit searches in one mesh"):
        preflight(small, target="v5e-4,v6e-8", mesh=("data=4", "data=8"), fit="batch")


def grows() -> None:
    import torch
    import torch_xla

    for step in range(9):
        kept = torch.zeros(step + 2).to(torch_xla.device()) * 2  # noqa: F841
        torch_xla.sync()


def test_a_graph_that_changes_at_each_step_is_told_with_its_causes() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        preflight(grows, target="v5e-1")
    assert caught.value.what == "The graph of grows changes at every step: 5 steps gave 5 graphs."
    assert any("input-shape: " in line for line in caught.value.details), caught.value.details
    assert "%tpu_check finds such code" in caught.value.todo
    assert preflights.newest() == []


def short() -> None:
    import torch
    import torch_xla

    model = torch.nn.Linear(4, 1).to(torch_xla.device())
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        loss = model(torch.ones(2 + step, 4).to(torch_xla.device())).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()


def test_a_loop_that_ends_too_early_is_told_to_be_too_short() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        preflight(short, target="v5e-1")
    error = caught.value
    assert error.what == "short made only 3 steps, and no two successive steps had the same graph."
    assert "such a short loop does not show the graph of later steps" in error.why
    assert error.todo.startswith("Let it make at least 6 steps (more data, or a longer loop)")
    assert not any("import" in line for line in error.details), error.details


def test_processes_and_spmd_cannot_be_had_together() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        preflight(small, target="v5e-4", processes=4, spmd=True)
    assert "-n 4 and --spmd" in said(caught.value)


# -- a search ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the search of this module found, and heard; made by the first test that asks."""
    return {}


def search(searched: dict[str, Any]) -> tuple[FitResult, Heard]:
    if not searched:
        heard = Heard()
        found = preflight(wide, 64, target="v5e-1", fit="batch", kept=False, callbacks=heard.telling)
        [searched["fit"]], searched["heard"], searched["found"] = found.fit, heard, found
    return searched["fit"], searched["heard"]


@pytest.mark.long
def test_the_largest_agrees_with_trying_its_neighbours(searched: dict[str, Any]) -> None:
    found, _ = search(searched)
    assert found.largest is not None and found.nice is not None
    assert 300 < found.largest < 600 and found.nice % 8 == 0 and found.largest - 8 < found.nice <= found.largest

    def status(batch: int) -> str:
        return preflight(wide, batch, target="v5e-1").results[0].status

    assert [status(found.largest + more) for more in (0, 1)] == ["fits", "too-large"]
    assert overlay.is_host() or [status(found.largest - 1), status(found.nice)] == ["fits", "fits"]


def test_the_figures_are_those_of_the_size_to_take(searched: dict[str, Any]) -> None:
    fit, _ = search(searched)
    found = searched["found"]
    assert fit.nice is not None and fit.nice > 64 and figures_are_of(found, fit.nice)
    assert f"Memory, cost and verdict are for batch = {fit.nice}." in to_text(found)


def test_all_graphs_are_compiled_only_for_the_sizes_of_the_result(searched: dict[str, Any]) -> None:
    found, heard = search(searched)
    whole = [one for one in found.points if one.status == "fits" and not one.partial]
    large = [one for one in found.points if one.status == "too-large"]
    assert large and len(heard.done) == len(found.points) + len(whole)
    assert {one.size for one in whole} == {64, found.largest, found.nice}
    texts = [one.error.splitlines() for one in large]
    assert all(len(lines) <= 1 for lines in texts), "a refusal is pages long"
    assert any(texts) or overlay.is_host(), "there the compiler makes a program that has no room for its outputs"
    assert all((one.needed or 0) > (one.available or 0) for one in large)
    assert heard.lines[:2] == ["wide: tracing for one rank", "batch = 64: v5litepod-1"]


@pytest.mark.long
def test_where_the_data_end_the_search_ends() -> None:
    """20 rows are three steps of 6, and two of 7: too few to tell what later steps need."""
    every = preflight(wide, 2, 20, target="v5e-1", fit="batch")
    [found] = every.fit
    assert (found.largest, found.nice, found.best, found.beyond) == (6, None, 6, 7)
    assert figures_are_of(every, 6)
    assert (
        "batch = 6 fits (compiled); with 7 the function itself fails: With batch = 7 the function makes only 2 steps, "
        "so the memory of later steps is unknown." in found.notes
    )


def figures_are_of(found: Preflight, size: int) -> bool:
    """Whether trace and compiles are those of that size, in the order of its graphs."""
    [result], [fit] = found.results, found.fit
    point = next(one for one in fit.points if one.size == size)
    assert result.worst.memory is not None and result.graph.hash == point.graph
    assert [one.graph for one in result.compiled] == [one.hash for one in result.traced.graphs]
    assert result.steady.graph == result.graph.hash
    return result.traced.batch == size and result.worst.memory.needed == point.needed


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


class Interrupted:
    """Is interrupted while Python clears it up, where what is raised is ignored."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


@pytest.mark.parametrize("come", [lambda: os.kill(os.getpid(), signal.SIGINT), Interrupted], ids=["now", "unseen"])
def test_a_search_that_is_interrupted_gives_what_it_found(come: Callable[[], object]) -> None:
    """The signal comes while the second size is compiled."""
    heard, before = Heard(), children()

    def progress(now: CompileProgress) -> None:
        heard.progress(now)
        if now.state == "compiling" and any("(12 fits)" in line for line in heard.lines):
            come()
            time.sleep(0.5)

    with pytest.raises(SearchInterrupted) as caught:
        telling = Callbacks(progress, heard.lines.append)
        preflight(small, 12, target="v5e-1", fit="batch", callbacks=telling)
    assert isinstance(caught.value, KeyboardInterrupt) and isinstance(caught.value, TpuMagicsError)
    found = caught.value.found
    [fit] = found.fit
    assert fit.interrupted and (fit.largest, fit.nice, fit.beyond) == (12, None, None) and len(fit.points) == 1
    assert figures_are_of(found, 12) and found.fits
    assert said(caught.value).splitlines() == [
        "The search for the largest batch was interrupted.",
        "Why: v5litepod-1: 12 fits.",
        "What to do: The results so far are shown. Run it again to continue: compiled results are cached.",
    ]
    assert children() <= before, "no compile process is left"
    assert "The search was interrupted" in to_text(found) and "at least 12" in to_text(found)


def test_an_interrupt_before_the_search_is_a_plain_one() -> None:
    def progress(_now: CompileProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        preflight(small, target="v5e-1", fit="batch", kept=False, callbacks=Callbacks(progress))
    assert not isinstance(caught.value, SearchInterrupted)


def test_a_name_that_a_step_with_given_arrays_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Keras model and its arrays: the graph is that of the arrays, whatever the name holds."""

    def of(batch: int) -> TraceResult:
        return TraceResult((LoweredGraph(b"", "hlo", f"graph of {batch}"),), 1, True, batch=32)

    call = TrainingCall(reads_a_name, (), {})
    size = Size.of("SIZE", reads_a_name, (), {}, {})
    tried: list[int] = []

    def reads(_call: TrainingCall) -> TraceResult:
        tried.append(SIZE)
        return of(SIZE)

    require_change(size, call, of(SIZE), reads)
    assert tried == [125] and SIZE == 1000
    with pytest.raises(TpuMagicsError) as caught:
        require_change(size, call, of(32), lambda _call: of(32))
    assert caught.value.what == "Changing SIZE has no effect: 1000 and 125 give the same graph."
    assert "They were created before, with 32 rows" in caught.value.why and "def step(SIZE)" in caught.value.todo
    monkeypatch.setitem(globals(), "SIZE", 3)
    with pytest.raises(TpuMagicsError, match="3 and 24 give the same graph"):
        require_change(Size.of("SIZE", reads_a_name, (), {}, {}), call, of(32), lambda _call: of(32))
    require_change(Size.of("batch", wide, (4,), {}, {}), TrainingCall(wide, (4,), {}), of(4), lambda _call: of(4))


def test_too_few_steps_with_the_size_that_there_is() -> None:
    heard = Heard()
    with pytest.raises(TpuMagicsError) as caught:
        preflight(small, target="v5e-1", kwargs={"steps": 1}, fit="batch", callbacks=heard.telling)
    assert (
        caught.value.what == "With batch = 8 the function makes only 1 step, so the memory of later steps is unknown."
    )
    assert not heard.done, "it is told before anything is compiled"
    with pytest.raises(TpuMagicsError, match="--fit does not work with --steps 2"):
        preflight(small, target="v5e-1", steps=2, fit="batch")


def test_a_name_of_the_notebook_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    found = preflight(reads_a_name, target="v5e-1", fit="SIZE")
    assert found.fit[0].largest == SIZE == 1000
    monkeypatch.setitem(globals(), "SIZE", "many")
    with pytest.raises(TpuMagicsError, match="--fit SIZE: its value is 'many'"):
        preflight(reads_a_name, target="v5e-1", fit="SIZE")


SIZE = 1000


def reads_a_name() -> None:
    """No more rows than at first: the search compiles one size."""
    if SIZE > 1000:
        raise ValueError("no more rows")
    small(SIZE)


def test_a_trace_that_was_ended_by_its_bound_counts_as_enough() -> None:
    traced = preflight(small, target="v5e-1")["v5e-1"].traced
    require_steps("batch = 8", traced, 5)


# -- the function of the package --------------------------------------------------------------------------------------


def test_keywords_that_are_missing_or_none_are_named() -> None:
    with pytest.raises(TpuMagicsError, match=r"^tpu_magics.preflight needs target") as missing:
        preflight(small)
    assert "names of TPUs" in str(missing.value)
    with pytest.raises(TpuMagicsError, match=r"has no option batch") as unknown:
        preflight(small, target="v5e-1", batch=8)
    assert "tpu_magics.preflight(f, ..., kwargs=dict(batch=...))" in str(unknown.value)


def test_the_room_can_be_called_and_shows_the_functions_help() -> None:
    import tpu_magics
    import tpu_magics.preflight.targets
    from tpu_magics.magics import preflight as magic

    room: Any = vars(tpu_magics)["preflight"]
    assert type(room).__mro__[1] is ModuleType and inspect.signature(room) == inspect.signature(magic.preflight)
    told = pydoc.plain(pydoc.render_doc(room))
    assert "preflight(function, *args, kwargs=None, plain=False, target, fit=None" in told and "names of TPUs" in told
    found = room(small, target="v5e-1", plain=True)
    assert isinstance(found, Preflight) and found.fits and str(found).startswith("Preflight of small: batch 8")


def test_the_public_train_has_preflight_among_its_options() -> None:
    import tpu_magics

    parameters = inspect.signature(tpu_magics.train).parameters
    assert "preflight" in parameters and "gate" not in parameters and "max_recompiles" in parameters
    told = inspect.getdoc(tpu_magics.train) or ""
    assert 'preflight: the name of a TPU ("v5e-8")' in told and "gate:" not in told
