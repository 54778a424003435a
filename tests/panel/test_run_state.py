"""The run that a panel shows: what follows from its records, and when they are read."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.recorded import CREATED, Recorded, began, first_compile, losses, myself, recompile, started
from tpu_magics.panel.html import to_html
from tpu_magics.panel.model_series import LIMIT, Downsampled
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.run_state import RunModel
from tpu_magics.panel.run_view import Point, RunView
from tpu_magics.panel.text import to_text
from tpu_magics.runs.events import (
    Batch,
    Cache,
    Divergence,
    End,
    Event,
    Fallback,
    Frame,
    Memory,
    Phase,
    Precision,
    Read,
    Start,
    Steps,
    Times,
    Total,
    Value,
    Warned,
    to_line,
)
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.reader import Tail


def steps(t: float, total: int, n: int, seconds: float, compiled: int = 0, compiled_seconds: float = 0.0) -> Steps:
    return Steps(CREATED + t, 0, total, n, seconds, compiled, compiled_seconds)


# -- its state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "state", "detail"),
    [
        ("starting", "starting", "starting the workers"),
        ("compiling", "compiling", "tracing and compiling the first step"),
        ("warming-up", "compiling", "the latest steps compiled"),
        ("running", "training", ""),
        ("done", "done", ""),
        ("failing", "compiling", "rank 1 failed; stopping the run"),
        ("failed", "failed", ""),
        ("on-tpu", "training", ""),
    ],
)
def test_the_state_follows_from_the_records(tmp_path: Path, name: str, state: str, detail: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    assert (view.state, view.detail) == (state, detail)
    assert view.live == (name not in ("done", "failed"))


@pytest.mark.parametrize(
    ("info", "events", "state", "detail"),
    [
        ({"status": "starting"}, (), "starting", "starting the workers"),
        ({}, (Start(CREATED, 0),), "starting", "the function has not started yet"),
        ({}, (*began(CREATED), Phase(CREATED, 0, "collecting")), "collecting results", "the function has ended"),
        ({"status": "collecting"}, began(CREATED), "collecting results", "the function has ended"),
        ({"status": "interrupted"}, began(CREATED), "interrupted", "the notebook's models are unchanged"),
        (
            {"status": "stopped"},
            (*began(CREATED), End(CREATED, 0, "limit")),
            "stopped",
            "--steps was reached; the notebook's models are unchanged",
        ),
        ({"status": "stopped"}, began(CREATED), "stopped", ""),
        ({"status": "timeout", "plan": {"timeout": 30}}, (), "timeout", "it exceeded --timeout 30"),
        ({"status": "refused"}, (), "refused", "nothing was started"),
        ({"pid": 1, "pid_started": 1}, began(CREATED), "lost", "the kernel of this run has ended, and the run with it"),
    ],
)
def test_every_other_state(
    tmp_path: Path, info: dict[str, Any], events: tuple[Event, ...], state: str, detail: str
) -> None:
    view = Recorded(tmp_path, **{**myself(), **info}).write(*events).view()
    assert (view.state, view.detail) == (state, detail)


def test_a_compile_after_the_newest_steps_is_compiling_until_steps_are_done(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2), steps(4, 10, 10, 3.0, 1, 2.0))
    assert run.view().state == "training"
    run.write(recompile(CREATED + 5, 1))
    assert run.view().state == "compiling"
    assert run.view().detail == "a graph was compiled since the last recorded step"
    assert run.write(steps(6, 20, 10, 1.0)).view().state == "training"


@pytest.mark.parametrize(("status", "state"), [("done", "done"), ("failed", "failed"), ("limit", "stopped")])
def test_without_run_json_the_last_record_tells(tmp_path: Path, status: str, state: str) -> None:
    run = started(tmp_path, End(CREATED + 3, 0, status))
    run.files.info_path.write_text("{torn")
    assert run.view().state == state


def test_without_run_json_and_an_end_nothing_is_claimed(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.files.info_path.unlink()
    view = run.view()
    assert (view.state, view.detail, view.elapsed) == ("unknown", "run.json is missing or incomplete", None)
    assert view.name == "text-classifier"  # the folder's name has it
    assert view.memory_total is None and view.device == ""


def test_a_kernel_that_dies_is_noticed_without_a_change_of_any_file(tmp_path: Path) -> None:
    run = started(tmp_path)
    model = RunModel(run.files)
    assert model.refresh() and not model.refresh()
    model._info["pid_started"] = 1  # what it is when the pid was given to another process
    assert model.refresh()
    assert model.view().state == "lost"


# -- steps -----------------------------------------------------------------------------------------------------------


def test_step_time_is_without_the_steps_that_compiled(tmp_path: Path) -> None:
    view = started(tmp_path, steps(4, 10, 10, 3.0, compiled=2, compiled_seconds=2.6), steps(5, 20, 10, 0.6)).view()
    assert view.step_seconds == pytest.approx(0.06), "the median of eight steps of 50 ms and ten of 60"
    assert view.compiled_steps == 2


def test_there_is_no_step_time_while_every_step_compiled(tmp_path: Path) -> None:
    view = started(tmp_path, steps(4, 2, 2, 3.0, compiled=2, compiled_seconds=3.0)).view()
    assert view.step_seconds is None
    assert view.steps_per_second == pytest.approx(2 / 3)


def test_the_rate_is_of_the_last_seconds_while_it_runs_and_of_all_afterwards(tmp_path: Path) -> None:
    run = started(tmp_path, steps(31, 10, 10, 30.0), *(steps(31 + at, 10 + at * 20, 20, 1.0) for at in range(1, 21)))
    assert run.view().steps_per_second == pytest.approx(20.0)
    run.update(status="done", seconds=52.0)
    assert run.view().steps_per_second == pytest.approx(410 / 50)


@pytest.mark.parametrize(
    ("totals", "done", "expected"),
    [
        ([], 5, None),
        ([24], 5, 24),
        ([24, 36], 24, 36),  # evaluation was seen
        ([24, 0], 5, None),  # it is not known any longer
        ([24], 25, 25),
        ([24], 30, None),
        ([-3], 5, None),
    ],
)
def test_the_number_of_all_steps_is_that_of_the_newest_record(
    tmp_path: Path, totals: list[int], done: int, expected: int | None
) -> None:
    ahead = [Total(CREATED + 2, 0, steps=total, source="8 batches x 3 epochs") for total in totals]
    other = Total(CREATED + 2, 1, steps=99, source="99 batches")
    view = started(tmp_path, *ahead, steps(3, done, done, 1.0), other).view()
    assert (view.total_steps, view.steps) == (expected, done)


def test_warming_up_ends_some_steps_after_the_newest_compile(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert run.view().warming_up == ""  # no compile is known
    run.write(first_compile(CREATED + 2), recompile(CREATED + 3, 1, step=1), steps(4, 2, 2, 3.0, 2, 3.0))
    assert run.view().warming_up == "warming up, 2 compiles so far"
    assert run.write(steps(5, 6, 4, 0.1)).view().warming_up == "warming up, 2 compiles so far"
    assert run.write(steps(6, 7, 1, 0.1)).view().warming_up == ""
    run.write(steps(7, 500, 493, 9.0), recompile(CREATED + 8, 2, step=499))
    assert run.view().warming_up == "compiled in the last steps, 3 compiles so far"
    run.update(status="done")
    assert run.view().warming_up == ""


def test_elapsed_goes_on_while_it_runs_and_stops_with_it(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert run.view(CREATED + 7).elapsed == 7.0
    assert run.view(CREATED - 7).elapsed == 0.0  # a clock that was set back
    run.update(pid_started=1)
    assert run.view(CREATED + 500).elapsed == pytest.approx(1.01)  # lost: until its last record
    run.update(status="done", seconds=12.5)
    assert run.view(CREATED + 500).elapsed == 12.5


# -- compiles --------------------------------------------------------------------------------------------------------


def test_recompiles_are_counted_by_what_the_record_says(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    view = run.view()
    assert (view.compiles, view.recompiles) == (8, 6)
    assert [(each.newest.cause, each.count) for each in view.causes] == [("input-shape", 5)]
    assert view.causes[0].seconds == pytest.approx(5 * 1.21)
    assert view.causes[0].newest.nth == 5
    labels = [(entry.compile.site.id, entry.compile.nth) for entry in view.compile_log]
    assert labels == [(1, 0), (0, 6), (0, 5), (0, 4), (0, 3), (0, 2), (0, 1), (0, 0)]
    assert len({entry.key for entry in view.compile_log}) == 8


@pytest.mark.parametrize(("at_end", "recompiles", "at_least"), [(2, 2, False), (None, 1, True)])
def test_the_runtimes_own_count_wins_and_an_observer_that_stopped_counts_at_least(
    tmp_path: Path, at_end: int | None, recompiles: int, at_least: bool
) -> None:
    run = started(tmp_path, first_compile(CREATED + 2), recompile(CREATED + 3, 1))
    view = run.write(End(CREATED + 4, 0, steps=3, compiles=4, recompiles=at_end)).view()
    assert (view.compiles, view.recompiles, view.at_least) == (4, recompiles, at_least)


@pytest.mark.parametrize(
    ("status", "end", "reason"),
    [
        ("running", None, "rank 0 has recorded none yet; the count comes at its end"),
        ("failed", None, "rank 0 did not finish"),
        ("done", End(CREATED + 5, 0, steps=9), "not reported by the runtime"),
    ],
)
def test_steps_without_a_record_of_a_compile_are_no_zero(
    tmp_path: Path, status: str, end: End | None, reason: str
) -> None:
    """As the first version of the records has them."""
    run = started(tmp_path, steps(4, 9, 9, 3.0), *([end] if end else []), status=status)
    view = run.view()
    assert (view.compiles, view.recompiles, view.compiles_missing) == (None, None, reason)
    assert view.compiling_share is None


def test_before_the_first_step_there_was_no_compile_so_far(tmp_path: Path) -> None:
    assert (started(tmp_path).view().compiles, started(tmp_path).view().recompiles) == (0, 0)


def test_the_share_of_compiling_is_of_the_time_since_the_function_began(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 5, seconds=2.0), steps(11.01, 9, 9, 9.0, 1, 4.0))
    assert run.view().compiling_share == pytest.approx(0.2)
    assert run.view().compiling == 2.0
    run.write(Times(CREATED + 21.01, 0, compiling=5.0))
    assert run.view().compiling_share == pytest.approx(0.25)
    run.write(Times(CREATED + 21.01, 0, compiling=500.0))
    assert run.view().compiling_share == 1.0


def test_a_compile_of_another_rank_only_is_in_the_log(tmp_path: Path) -> None:
    run = started(tmp_path, *began(CREATED + 1, 1, 2), first_compile(CREATED + 2), first_compile(CREATED + 2, rank=1))
    other = recompile(CREATED + 3, 1, 77, rank=1)
    run.write(other)
    assert [entry.rank for entry in run.view().compile_log] == [0]  # rank 0 may be about to do the same
    run.write(recompile(CREATED + 4, 1, 77))
    assert [entry.rank for entry in run.view().compile_log] == [0, 0]
    run.write(dataclasses.replace(other, site=dataclasses.replace(other.site, line=99), t=CREATED + 5))
    run.update(status="failed")
    assert [(entry.rank, entry.compile.site.line) for entry in run.view().compile_log] == [(1, 99), (0, 14), (0, 14)]


# -- the rest --------------------------------------------------------------------------------------------------------


def test_precision_is_that_of_the_graph_with_the_most_multiplications(tmp_path: Path) -> None:
    small = Precision(CREATED + 4, 0, asked="bf16", ops=0, share=None, text="the optimizer's graph")
    run = started(tmp_path, recorded.agreed(CREATED + 3), small)
    view = run.view()
    assert view.asked == "bf16" and view.precision is not None and view.precision.share == 1.0
    assert view.notices == ()
    run.write(dataclasses.replace(small, agrees=False, text="They differ."))
    assert [(notice.state, notice.text) for notice in run.view().notices] == [("warning", "They differ.")]


def test_memory_is_newest_and_highest_of_each_rank(tmp_path: Path) -> None:
    run = started(tmp_path, Memory(CREATED + 2, 0, rss=900, pss=500), Memory(CREATED + 3, 0, rss=700, pss=None))
    run.write(Memory(CREATED + 4, 0, hbm_used=5, hbm_total=16))
    [rank] = run.view().ranks
    assert (rank.rss, rank.pss, rank.peak_rss, rank.peak_pss) == (700, None, 900, 500)
    assert (rank.hbm_used, rank.hbm_total) == (5, 16)
    assert run.view().memory_total == recorded.MACHINE
    run.update(workers=[{"rank": 0, "peak_rss": 1000, "peak_pss": "?", "exit": 0}], host={"memory": "much"})
    [rank] = run.view().ranks
    assert (rank.peak_rss, rank.peak_pss, rank.exit) == (1000, 500, "exit code 0")
    assert run.view().memory_total is None


def test_values_keep_their_first_last_and_extreme_numbers(tmp_path: Path) -> None:
    numbers = [3.0, 9.0, -1.0, 2.0]
    run = started(tmp_path, *(Value(CREATED + 2, 0, "loss", each, at) for at, each in enumerate(numbers)))
    run.write(
        Value(CREATED + 3, 0, "loss", 1.0, 8, n=4, low=-7.0, high=12.0), Value(CREATED + 3, 0, "stage", "warm", 4)
    )
    loss, stage = run.view().values
    assert (loss.name, loss.first, loss.last) == ("loss", 3.0, 1.0)
    assert loss.points[-1] == Point(8, 1.0, -7.0, 12.0)
    assert (stage.last, stage.points) == ("warm", ())


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_value_that_is_no_finite_number_is_told_with_its_step(tmp_path: Path, bad: str) -> None:
    run = started(tmp_path, Value(CREATED + 2, 0, "loss", 1.0, 3), Value(CREATED + 2, 0, "loss", bad, 4))
    [loss] = run.write(Value(CREATED + 3, 0, "loss", 2.0, 9)).view().values
    assert (loss.not_finite_at, loss.last) == (4, 2.0)
    hidden = Value(CREATED + 4, 0, "lr", 2.0, 20, n=9, low=1.0, high="nan")
    assert [each.not_finite_at for each in run.write(hidden).view().values] == [4, 20]


def test_reads_and_operations_are_as_of_their_newest_record(tmp_path: Path) -> None:
    view = recorded.running(tmp_path).write(recorded.read_early(CREATED + 30, count=99, seconds=7.5)).view()
    assert [(each.count, each.site.line) for each in view.transfers] == [(99, 17)]
    assert [(each.count, each.site.line) for each in view.reads] == [(12, 30)]
    assert [(each.op, each.count) for each in view.fallbacks] == [("aten::nonzero", 12)]


def test_warnings_are_said_once_with_their_ranks_and_the_worst_is_first(tmp_path: Path) -> None:
    run = started(tmp_path, warnings=["No disk.", "Careful."])
    run.write(Warned(CREATED + 2, 1, "x", "Careful."), Warned(CREATED + 2, 0, "x", "Careful."))
    run.write(Divergence(CREATED + 3, 0, (1,), 2, {"0": "a", "1": "b"}))
    run.supervise(Warned(CREATED + 3, 0, "y", "From the parent."))
    found = [(notice.state, notice.text, notice.ranks) for notice in run.view().notices]
    assert found == [
        ("broken", "Ranks compiled different graphs at compile #2: 1. On a TPU this run would hang.", ()),
        ("warning", "Careful.", (0, 1)),
        ("warning", "From the parent.", (0,)),
        ("warning", "No disk.", ()),
    ]


def test_a_failure_is_the_supervisors_else_that_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    frames = (Frame("In [2]", 3, "f", "g()"), Frame("lib.py", 9, "g", "raise", library=True))
    run = started(tmp_path, End(CREATED + 9, 0, "failed", error_type="RuntimeError", error_text="Connection closed"))
    run.write(End(CREATED + 8, 1, "failed", error_type="ValueError", error_text="no", frames=frames))
    failure = run.view().failure
    assert failure is not None and failure.what == "Rank 1 failed: ValueError: no"
    assert failure.details == ("In [2], line 3, in f: g()",)
    run.update(status="failed", failure=recorded.FAILURE)
    failure = run.view().failure
    assert failure is not None and failure.why == recorded.FAILURE["why"] and len(failure.details) == 3


def test_the_parts_of_the_batch_come_as_they_are(tmp_path: Path) -> None:
    batch = Batch(CREATED + 2, 0, per_device=8, accumulation=None, ranks=2)
    assert started(tmp_path, batch).view().batch == batch


def test_the_lowest_rank_that_began_speaks_for_the_run(tmp_path: Path) -> None:
    run = Recorded(tmp_path, **myself()).write(*began(CREATED + 1, 3, 8), Steps(CREATED + 3, 3, 5, 5, 2.0))
    run.write(Memory(CREATED + 2, 0, rss=5))
    view = run.view()
    assert (view.lead, view.steps) == (3, 5)
    assert [(rank.rank, rank.state) for rank in view.ranks] == [(0, "starting"), (3, "training")]


# -- reading ---------------------------------------------------------------------------------------------------------


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(tmp_path, steps(3, 5, 5, 1.0))
    model = RunModel(run.files, clock=lambda: CREATED)
    assert model.refresh() and not model.refresh()
    opened: list[str] = []
    read = Tail.read

    def noted(tail: Tail) -> list[Event]:
        opened.append(tail.path.name)
        return read(tail)

    monkeypatch.setattr(Tail, "read", noted)
    assert not model.refresh() and not opened
    line = to_line(steps(4, 9, 4, 1.0))
    with open(run.files.events_path(0), "ab") as file:
        file.write(line[:20])
    assert not model.refresh()  # half a line says nothing yet
    assert model.view().steps == 5
    with open(run.files.events_path(0), "ab") as file:
        file.write(line[20:])
    assert model.refresh() and model.view().steps == 9
    assert opened == ["rank-0.jsonl"] * 2
    run.update(status="done")
    assert model.refresh() and model.view().state == "done"


def test_a_view_after_many_small_looks_is_that_of_one_look(tmp_path: Path) -> None:
    whole = recorded.running(tmp_path / "whole")
    lines = whole.files.events_path(0).read_bytes().splitlines(keepends=True)
    piecewise = Recorded(tmp_path / "parts", **myself())
    shutil.copy(whole.files.supervisor_path, piecewise.files.supervisor_path)
    model = RunModel(piecewise.files, clock=lambda: CREATED + 60)
    for line in lines:
        with open(piecewise.files.events_path(0), "ab") as file:
            file.write(line)
        assert model.refresh()

    def facts(view: RunView) -> RunView:
        return dataclasses.replace(view, id="", path="")

    assert facts(model.view()) == facts(whole.view())


def test_an_attempt_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    run = started(tmp_path, steps(3, 50, 50, 1.0), *losses(CREATED, 50))
    model = RunModel(run.files)
    model.refresh()
    assert model.view().steps == 50
    run.files.events_path(0).unlink()
    assert model.refresh() and model.view().steps is None
    run.write(*began(CREATED + 20))
    assert model.refresh() and model.view().steps == 0 and model.view().values == ()


def test_what_was_read_of_a_folder_that_is_gone_stays(tmp_path: Path) -> None:
    run = recorded.done(tmp_path)
    model = RunModel(run.files)
    model.refresh()
    before = model.view()
    shutil.rmtree(run.files.path)
    assert not model.refresh()
    assert model.view() == before


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    model = RunModel(RunFiles(tmp_path / "none"))
    assert not model.refresh()
    assert model.view().state == "unknown" and model.view().ranks == ()


def test_a_record_cut_at_any_byte_can_be_shown(tmp_path: Path) -> None:
    whole = recorded.failed(tmp_path / "whole")
    run = Recorded(tmp_path / "cut")
    shutil.copy(whole.files.info_path, run.files.info_path)
    content = whole.files.events_path(0).read_bytes()
    first = content.splitlines(keepends=True)
    kinds = {json.loads(line)["kind"]: line for line in first}
    content = b"".join(kinds.values())  # one of each kind
    for end in range(0, len(content), 3):
        run.files.events_path(0).write_bytes(content[:end])
        view = run.view()
        assert view.state == "failed"
        if end % 60 == 0:
            assert "failed" in to_html(page(view)) and "failed" in to_text(page(view))


NOT_FINITE = [math.nan, math.inf, -math.inf]
LARGE = "a large number"  # stands for 5,000 digits, which json.dumps does not write
HOSTILE: list[Any] = [
    *NOT_FINITE,
    LARGE,
    [LARGE, LARGE],
    {"a": LARGE},
    None,
    True,
    -1,
    0,
    2**80,
    1e308,
    -1e308,
    "x",
    "",
    [],
    [[]],
    {},
    {"a": 1},
    "\ud800",
    "<script>",
]


def _dumped(record: Any) -> str:
    return json.dumps(record).replace(json.dumps(LARGE), "1" * 5_000)


def _records() -> list[dict[str, Any]]:
    return [json.loads(to_line(event)) for event in ALL_KINDS]


ALL_KINDS: tuple[Event, ...] = (
    *began(1.0),
    steps(2, 5, 5, 1.0),
    Value(2.0, 0, "loss", 1.0, 3, n=2, low=0.5, high=2.0),
    Memory(2.0, 0, rss=5, pss=4, hbm_used=1, hbm_total=2),
    first_compile(3.0, memory={"arguments": 5}),
    recompile(3.0, 1),
    recorded.read_early(3.0),
    recorded.agreed(3.0),
    Times(4.0, 0, 1.0, 2.0, 3.0),
    Batch(4.0, 0, 8, 2, 2),
    Read(4.0, 0, recorded.STEP, 3, 0.5, "x.item()"),
    Fallback(4.0, 0, "aten::nonzero", 3),
    Cache(4.0, 0, 1, 2, "/cache"),
    Divergence(4.0, 0, (1,), 2, {"0": "a"}),
    Warned(4.0, 0, "c", "Careful."),
    End(5.0, 0, "failed", 3.0, 5, 2, 1, "E", "no", (Frame("a", 1, "f"),)),
)


@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.long)], ids=["together", "alone"])
@pytest.mark.parametrize("record", _records(), ids=lambda record: str(record["kind"]))
def test_nothing_in_a_record_is_taken_for_granted(tmp_path: Path, record: dict[str, Any], alone: bool) -> None:
    """Every field of every kind holds what no writer of ours puts there: all in one file, or one after the other."""
    run = Recorded(tmp_path, **myself())
    for field in record:
        changed = [_dumped({**record, field: value}).encode() + b"\n" for value in HOSTILE]
        for lines in changed if alone else (b"".join(changed), b"".join(reversed(changed))):
            run.files.events_path(0).write_bytes(b"".join(map(to_line, began(1.0))) + lines)
            _is_shown(run.view())


INNER = [{key: value} for key in ("device", "memory", "steps", "timeout", "precision") for value in HOSTILE]
ROWS = [[{"rank": value, "exit": value, "signal": value, "peak_rss": value}] for value in HOSTILE]


@pytest.mark.parametrize("field", ["id", "name", "created", "status", "pid", "plan", "host", "workers", "seconds"])
def test_nothing_in_run_json_is_taken_for_granted(tmp_path: Path, field: str) -> None:
    run = recorded.failed(tmp_path)
    info = json.loads(run.files.info_path.read_bytes())
    parts = INNER if field in ("plan", "host") else ROWS if field == "workers" else []
    for value in [*HOSTILE, *parts]:
        run.files.info_path.write_text(_dumped({**info, field: value}))
        _is_shown(run.view())


@pytest.mark.parametrize("instead", [False, pytest.param(True, marks=pytest.mark.long)], ids=["inside", "instead"])
@pytest.mark.parametrize("field", ["failure", "models", "warnings"])
def test_nothing_in_the_lists_of_run_json_is_taken_for_granted(tmp_path: Path, field: str, instead: bool) -> None:
    run = recorded.done(tmp_path)
    info = json.loads(run.files.info_path.read_bytes())
    objects = [{"what": [], "why": 5, "details": "x"}, {"details": [5, None]}, {"name": "<script>"}]
    for value in (*HOSTILE, *objects):
        run.files.info_path.write_text(_dumped({**info, field: value if instead else [value]}))
        _is_shown(run.view())


def _is_shown(view: RunView) -> None:
    html, text = to_html(page(view)), to_text(page(view))
    assert "<script" not in html
    assert text.replace("\n", "").isprintable()
    assert (html + text).encode("utf-8")


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_long_run_is_thinned(tmp_path: Path) -> None:
    view = recorded.long_run(tmp_path).view()
    assert (view.steps, view.compiles, view.recompiles) == (99_000, 1_000, 999)
    assert len(view.compile_log) == 1_000
    assert all(len(series.points) <= LIMIT for series in view.values)
    assert len(view.step_times) <= LIMIT
    [loss, *_others] = view.values
    assert loss.first == 3.0


def test_what_was_not_read_of_a_long_record_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = started(tmp_path).write_many(recompile(CREATED + 2 + nth, nth) for nth in range(60))
    assert run.view().compiles == 60 and run.view().notices == ()
    monkeypatch.setattr("tpu_magics.panel.run_state.MOST_READ", 8_000)
    view = run.view()
    assert view.compiles is not None and view.compiles < 60
    [notice] = view.notices
    assert notice.text.startswith("rank-0.jsonl was read in part: 0.004 MB at each end of")


def test_the_log_of_compiles_has_an_end(tmp_path: Path) -> None:
    run = started(tmp_path).write_many(recompile(CREATED + 2 + nth, nth) for nth in range(1_500))
    view = run.view()
    assert view.recompiles == 1_500 and len(view.compile_log) == 1_000
    assert (view.compile_log[0].key, view.compile_log[-1].key) == ("0-1499", "0-500")


def test_tables_by_line_have_an_end(tmp_path: Path) -> None:
    site = recorded.STEP
    many = (
        recorded.read_early(CREATED + 2, site=dataclasses.replace(site, id=line, line=line)) for line in range(2_000)
    )
    assert len(started(tmp_path).write_many(many).view().transfers) == 500


@pytest.mark.parametrize("count", [1, 2, 199, 200, 201, 400, 401, 12_345])
def test_thinning_loses_no_extreme_and_keeps_the_ends(count: int) -> None:
    kept: Downsampled[tuple[int, int, int]] = Downsampled(lambda a, b: (a[0], b[1], max(a[2], b[2])))
    for number in range(count):
        kept.add((number, number, 10**6 if number == count // 3 else number))
    assert len(kept.points) <= LIMIT
    assert (kept.points[0][0], kept.points[-1][1]) == (0, count - 1)
    assert max(point[2] for point in kept.points) == 10**6
    assert all(left[1] + 1 == right[0] for left, right in zip(kept.points, kept.points[1:], strict=False))


def test_times_of_steps_reach_to_the_last_step(tmp_path: Path) -> None:
    view = recorded.long_run(tmp_path).view()
    assert view.step_times[-1][0] == 99_000
    assert view.step_seconds is not None and math.isclose(view.step_seconds, view.step_times[0][1], rel_tol=0.2)
    assert os.path.getsize(RunFiles(view.path).events_path(0)) > 10**6
