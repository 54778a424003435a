"""What is made of a compile process's events: progress, the bound on memory, its death. Process and clock are fake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.preflight import stablehlo_programs as programs
from tests.preflight.stablehlo_programs import compile_some, graph
from tpu_magics.preflight import compilation, compile_process, compiler
from tpu_magics.preflight.compilation import CompileMonitor, CompileProgress
from tpu_magics.preflight.compile_result import CompileResult, to_json
from tpu_magics.preflight.targets import parse

GIB = 2**30
GRAPHS = {number: graph(programs.TRAINING, hash=str(number)) for number in range(2)}
V5E = parse("v5e-4")

Tick = tuple[float, Sequence[dict[str, Any]], int]  # seconds, events, bytes


def started(number: int) -> dict[str, Any]:
    return {"event": compiler.STARTED, "graph": number}


def compiled(number: int) -> dict[str, Any]:
    result = CompileResult(V5E.name, str(number), "fits", seconds=4.5)
    return {"event": compiler.COMPILED, "graph": number, "compiled": to_json(result)}


class FakeProcess:
    """Tells what each tick of the watch finds; then its pipe is closed."""

    def __init__(self, ticks: Sequence[Tick], code: int = 0) -> None:
        self._ticks: Iterator[Tick] = iter(ticks)
        self._resident, self._code = 0, code
        self.now, self.peak = 100.0, 0

    def events(self, timeout: float) -> Sequence[dict[str, Any]] | None:
        assert 0 < timeout < 1
        tick = next(self._ticks, None)
        if tick is None:
            return None
        seconds, events, self._resident = tick
        self.now += seconds
        return events

    def resident(self) -> int:
        self.peak = max(self.peak, self._resident)
        return self._resident

    def ended(self) -> int:
        return self._code

    def last_lines(self) -> tuple[str, ...]:
        return ("its last line",)

    def stop(self) -> None:
        pass


def watched(
    ticks: Sequence[Tick], limit: int | None = None, code: int = 0
) -> tuple[dict[int, CompileResult], list[Any]]:
    """Results by number, and what was told: (clock, number, state, elapsed, resident)."""
    process, results, told = FakeProcess(ticks, code), {}, []
    watch = CompileMonitor(
        process,  # type: ignore[arg-type]
        GRAPHS,
        V5E,
        {"libtpu": "0.0.52"},
        limit,
        len(GRAPHS),
        on_progress=lambda *one: told.append((process.now, *one)),
        done=results.__setitem__,
        clock=lambda: process.now,
    )
    watch.run()
    return results, told


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_told_every_second() -> None:
    """However often the process tells something, and from the start of it on."""
    quiet = [(0.2, (), GIB)] * 20
    ticks = [*quiet, (0.2, [started(0)], GIB), *quiet, (0.2, [compiled(0)], GIB), (0.2, [started(1)], GIB), *quiet]
    _, told = watched([*ticks, (0.2, [compiled(1)], GIB)])
    times = [100.0, *(one[0] for one in told)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 1
    assert len(told) < len(ticks), "not at every tick"


def test_it_is_told_how_long_a_graph_takes_and_what_it_holds() -> None:
    ticks = [(0.2, [started(0)], GIB), *[(0.2, (), 2 * GIB)] * 10, (0.2, [compiled(0)], 3 * GIB)]
    _, told = watched([*ticks, (0.2, [started(1)], GIB), (0.2, [compiled(1)], GIB)])
    first = [one for one in told if one[1] == 0]
    assert [one[2] for one in first] == ["compiling"] * (len(first) - 1) + ["done"]
    assert [one[3] for one in first] == pytest.approx([0.0, 0.6, 1.2, 1.8, 4.5], abs=0.01)
    assert {one[4] for one in first} == {GIB, 2 * GIB, 3 * GIB}


# -- the bound --------------------------------------------------------------------------------------------------------


def test_above_the_bound_the_graph_at_hand_fails() -> None:
    results, _ = watched([(0.2, [started(0)], GIB), (0.2, (), 3 * GIB)], limit=2 * GIB)
    assert results[0].status == "failed" and results.keys() == {0}
    assert "stopped at its limit of 2.00 GiB of host memory: it used 3.00 GiB, at graph 1 of 2" in results[0].error
    assert results[0].peak == 3 * GIB


@pytest.mark.parametrize("also", [[], [started(1)]])
def test_what_is_done_stays_done_above_the_bound(also: list[dict[str, Any]]) -> None:
    """And the next graph is not failed for the memory of the one before: it gets a process of its own."""
    results, _ = watched([(0.2, [started(0)], GIB), (0.2, [compiled(0), *also], 3 * GIB)], limit=2 * GIB)
    assert {number: one.status for number, one in results.items()} == {0: "fits"}


def test_the_rest_is_compiled_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    def start(graphs: dict[int, Any], *_: object) -> FakeProcess:
        asked.append(list(graphs))
        number = asked[-1][0]
        return FakeProcess([(0.0, [started(number)], GIB), (0.0, [compiled(number)], 3 * GIB)])

    monkeypatch.setattr(compile_process, "start", start)
    monkeypatch.setattr(compile_process, "compiler_versions", lambda _: {"libtpu": "0.0.52"})
    told: list[CompileProgress] = []
    found = compile_some(list(GRAPHS.values()), on_progress=told.append, memory_limit=2 * GIB)
    assert [one.status for one in found] == ["fits", "fits"]
    assert asked == [[0, 1], [1]]
    assert [one.graph for one in told if one.state == "done"] == [0, 1]
    assert compilation.FLOOR < 2 * GIB


# -- its end ----------------------------------------------------------------------------------------------------------


def test_the_graph_that_it_died_of_is_named() -> None:
    results, _ = watched([(0.2, [started(0), compiled(0), started(1)], GIB)], code=-9)
    assert results[0].status == "fits"
    assert results[1].status == "failed"
    assert results[1].error.startswith("The compile process ended with signal SIGKILL")
    assert "at graph 2 of 2" in results[1].error and results[1].error.endswith("its last line")
