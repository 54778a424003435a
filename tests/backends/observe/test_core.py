"""The core of the observer, with the smallest adapter that a framework can have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpu_magics
from tpu_magics.backends import hlo
from tpu_magics.backends.base import ObserverConfig, RecompileLimit, StepLimit, StopRequested
from tpu_magics.backends.observe.compiles import (
    FULL_RECORDS,
    CompileCause,
    CompileComparison,
    CompileEvidence,
    CompileReport,
    History,
    InputFixes,
    evaluation_batch,
    first_cause,
    graph_distance,
    input_change,
    unknown,
)
from tpu_magics.backends.observe.measurements import LoggedValues, PeriodicSampler, PrecisionWatch, precision_facts
from tpu_magics.backends.observe.observer import Observer, guarded
from tpu_magics.backends.observe.sites import indexed, names_used
from tpu_magics.runs.events import Compile, Event, Input, Precision, Site, Warned, from_line, only
from tpu_magics.runs.writer import EventWriter

SITE = Site(0, "In [1]", 4)
GRAPH = """HloModule m

ENTRY %m (x.1: f32[{0},4], y.2: f32[4,4]) -> f32[{0},4] {{
  %x.1 = f32[{0},4]{{1,0}} parameter(0)
  %y.2 = f32[4,4]{{1,0}} parameter(1)
  ROOT %dot.3 = f32[{0},4]{{1,0}} dot(%x.1, %y.2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
FIXES = InputFixes("drop it", "convert it", "pad it")


class HostValues(LoggedValues):
    def waits(self, value: Any) -> bool:
        return False


class Float32Watch(PrecisionWatch):
    def facts(self, graph: hlo.Graph, digest: str) -> dict[str, Any]:
        return precision_facts(("bf16", "--precision"), graph, digest, False, " Nobody asked.", ["A note."])


class CountingSampler(PeriodicSampler):
    def sample(self) -> None:
        self.record_if_new("warning", Warned, code="sampled")


class SmallObserver(Observer[CompileEvidence]):
    @guarded
    def fails(self) -> None:
        raise ZeroDivisionError("it is broken")


def explain(new: CompileEvidence, old: CompileEvidence) -> CompileCause:
    pair = CompileComparison(new, old)
    return first_cause((evaluation, lambda one: input_change(one, FIXES), unknown), pair)


def evaluation(pair: CompileComparison[CompileEvidence]) -> CompileCause | None:
    return CompileCause("new-part", "", "") if pair.new.part_text == "evaluation" else None


def distance(new: CompileEvidence, old: CompileEvidence) -> tuple[int, ...]:
    return graph_distance(new, old), -old.nth


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EventWriter]:
    one = EventWriter(tmp_path / "rank-0.jsonl", 0)
    yield one
    one.close()


def observer(writer: EventWriter, **config: Any) -> SmallObserver:
    made = SmallObserver(
        writer,
        ObserverConfig(**config),
        History(writer, distance, explain),
        HostValues(writer),
        Float32Watch("", writer.record),
    )
    made.sampler = CountingSampler(writer)
    return made


def compiled(rows: int, nth: int = 0, **fields: Any) -> CompileEvidence:
    report = CompileReport(seconds=1.23456, graph=hlo.parse(GRAPH.format(rows)))
    return CompileEvidence(SITE, nth, 2, report, inputs=(Input("x", (rows, 4), "float32"),), **fields)


def events_of(writer: EventWriter) -> list[Event]:
    found = [from_line(line) for line in writer.path.read_bytes().splitlines()]
    return [event for event in found if event is not None]


# -- steps ------------------------------------------------------------------------------------------------------------


def test_steps_are_counted_until_a_limit(writer: EventWriter) -> None:
    one = observer(writer, steps=3)
    one.count_steps(2)
    with pytest.raises(StepLimit):
        one.count_steps()
    assert one.total_steps == 3
    with pytest.raises(StopRequested):
        observer(writer, stop_requested=lambda: True).count_steps()


def test_a_sample_is_taken_when_it_is_due_and_recorded_when_it_is_new(writer: EventWriter) -> None:
    one = observer(writer)
    one.count_steps()
    assert not writer.path.exists()
    for _ in range(2):
        one.sampler.due = 0.0
        one.count_steps()
    assert [event.code for event in only(events_of(writer), Warned)] == ["sampled"]


def test_an_error_ends_the_monitoring_and_not_the_steps(writer: EventWriter) -> None:
    one = observer(writer)
    for _ in range(2):
        one.fails()
    one.count_steps()
    (warned,) = only(events_of(writer), Warned)
    assert warned.text.startswith("Monitoring stopped (ZeroDivisionError: it is broken in test_core.py:")
    assert (one.total_steps, one.compiles, one.recompiles) == (1, None, None)


# -- compiles ---------------------------------------------------------------------------------------------------------


def test_a_compile_is_compared_with_the_nearest_earlier_one(writer: EventWriter) -> None:
    one = observer(writer, max_recompiles=1)
    one.record_compile(compiled(8), evaluation_batch(8, 16))
    one.record_compile(compiled(4, 1), None)
    one.check_recompile_limit()
    one.record_compile(compiled(8, 2, trigger="sync", by_rank=True, part_text="a part"), None)
    with pytest.raises(RecompileLimit):
        one.check_recompile_limit()
    first, second, third = only(events_of(writer), Compile)
    assert first.text.startswith("Evaluation uses batches of 8 (training: 16)") and not first.recompile
    assert (first.seconds, first.step, first.graph) == (1.2346, 2, compiled(8).report.name)
    assert (second.cause, second.fix, second.nearest) == ("input-shape", "pad it", 0)
    assert second.difference == ("x now float32[4,4], before float32[8,4]",)
    assert (third.cause, third.nearest, third.trigger, third.by_rank, third.part) == (
        *("unknown", 0, "sync", True),
        "a part",
    )
    assert (one.compiles, one.recompiles) == (3, 2)


def test_the_limit_does_not_count_what_every_training_has(writer: EventWriter) -> None:
    one = observer(writer, max_recompiles=0)
    one.record_compile(compiled(8), None)
    one.record_compile(compiled(4, 1, part_text="evaluation"), None)
    one.check_recompile_limit()
    assert one.recompiles == 1
    one.record_compile(compiled(2, 2), None)
    with pytest.raises(RecompileLimit, match="recompile 1; --max-recompiles allows 0"):
        one.check_recompile_limit()


def test_causes_of_an_input() -> None:
    old = compiled(8)
    last = explain(compiled(3, short=frozenset({(8, 3)})), old)
    assert (last.cause, last.fix) == ("last-batch", "drop it")
    assert last.text == "The last batch has 3 samples instead of 8: x now float32[3,4], before float32[8,4]."
    dtype = explain(replace(old, inputs=(Input("x", (8, 4), "float16"),)), old)
    assert (dtype.cause, dtype.fix) == ("input-dtype", "convert it")
    nothing = replace(old, report=CompileReport())
    assert explain(nothing, nothing).text == "The cause is unknown: the graphs could not be compared."


def test_later_records_are_small(writer: EventWriter) -> None:
    history = History(writer, distance, explain)
    for nth in range(FULL_RECORDS + 1):
        history.add(compiled(8 + nth, nth))
    *_, before, last = only(events_of(writer), Compile)
    assert before.text and before.inputs and not last.text and not last.inputs
    assert last.cause == before.cause == "input-shape"


def test_the_graph_with_the_most_multiplications_gives_the_precision(writer: EventWriter) -> None:
    one = observer(writer)
    for nth, rows in enumerate((8, 4)):
        one.record_compile(compiled(rows, nth), None)
    (found,) = only(events_of(writer), Precision)
    assert (found.graph, found.ops, found.share, found.notes) == (compiled(8).report.name, 1, 0.0, ("A note.",))
    assert found.text == (
        "bf16 requested by --precision: 0 of 1 matmuls and convolutions in bf16 (1 f32), before XLA optimizes the "
        "graph. Nobody asked."
    )


@pytest.mark.process
def test_the_core_imports_no_framework() -> None:
    code = (
        "import sys, tpu_magics.backends.observe.observer, tpu_magics.backends.observe.compiles, "
        "tpu_magics.backends.observe.measurements\n"
        "print(sorted({'torch', 'torch_xla', 'tensorflow', 'numpy'} & sys.modules.keys()))"
    )
    root = Path(tpu_magics.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=root)
    assert done.stdout == "[]\n", done.stderr


# -- what names are used for ------------------------------------------------------------------------------------------

NAMES = """
def work(x, scale):
    seen = shown = tries = 0
    for row in range(limit):
        seen += 1
        tries = tries + 1
        if shown < 5 and seen > limit and not tries:
            print("%d" % y[row], seen, f"{tries}")
            print("%d of %d" % (shown, limit))
        x = x * scale if (x > bound).any() else x
"""


def test_a_number_that_is_only_counted_tested_or_printed_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(NAMES)
    known, used = names_used((str(path),), frozenset({"seen", "shown", "tries", "limit", "row", "scale"}), "work", 5)
    assert known - used == {"seen", "shown", "tries", "limit"}
    assert {"x", "y", "row", "scale", "bound"} <= used
    assert indexed(str(path), 8) == (("y", "row"),)
    assert indexed(str(path), 5) == indexed(str(tmp_path / "none.py"), 1) == ()
