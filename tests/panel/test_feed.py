"""What has changed since the last message, as a front end puts it together again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.panel import recorded
from tests.panel.recorded import CREATED, Recorded, first_compile, recompile
from tpu_magics.panel.feed import HEARTBEAT_EVERY, PATIENCE, PATIENT, Feed
from tpu_magics.panel.json_values import plain, size_of
from tpu_magics.panel.messages import RunMessage, UpdateMessage
from tpu_magics.panel.model import RunModel
from tpu_magics.panel.model_view import RunView
from tpu_magics.panel.run_json import COMM, record
from tpu_magics.runs.events import Value


class FrontEnd:
    """What labextension/src/merge.ts does with what it is sent, after it went through JSON."""

    def __init__(self) -> None:
        self.record: Any = None
        self.seq = 0
        self.missed = 0

    def take(self, message: RunMessage | UpdateMessage | None) -> None:
        if message is None:
            return
        told = json.loads(json.dumps(plain(message), allow_nan=False))
        if isinstance(message, RunMessage):
            self.record, self.seq = told["record"], told["seq"]
            return
        if told["after"] != self.seq:
            self.missed += 1
            return
        view = {**self.record["view"], **told["view"]}
        view["compile_log"] = [*told["log"], *view["compile_log"]][:1_000]
        self.record = {"v": 1, "view": view, "said": {**self.record["said"], **told["said"]}}
        self.seq = told["seq"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def growing(source: Recorded, root: Path) -> tuple[Recorded, list[tuple[Path, bytes]]]:
    """A run folder that is empty yet, and the lines that its workers will write, in the order of their time."""
    told = {name: value for name, value in source.folder.info.items() if name not in ("id", "name")}
    target = Recorded(root, "grows", **told)
    lines: list[tuple[float, int, Path, bytes]] = []
    for path in sorted(source.files.path.glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
            lines.append((json.loads(line)["t"], number, target.files.path / path.name, line))
    return target, [(path, line) for _t, _number, path, line in sorted(lines, key=lambda each: each[:2])]


def write(lines: list[tuple[Path, bytes]]) -> None:
    for path, line in lines:
        with path.open("ab") as file:
            file.write(line)


@given(kind=st.sampled_from(sorted(recorded.RUNS)), cuts=st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_updates_put_together_are_the_whole_run_at_each_step(kind: str, cuts: list[int]) -> None:
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        run, lines = growing(recorded.RUNS[kind](Path(first)), Path(second))
        clock, now = Clock(), [CREATED + 1.0]
        model, feed, front = RunModel(run.files, clock=lambda: now[0]), Feed(run.files.id, clock, 0.0), FrontEnd()
        for cut in [*cuts, len(lines)]:
            write(lines[:cut])
            lines = lines[cut:]
            now[0] += 0.5
            model.refresh()
            view = model.view()
            front.take(feed.update(view))
            assert front.record == record(view) and front.seq == feed.seq
            asked = feed.whole("me")
            assert asked is not None and (asked.record, asked.seq, asked.request) == (record(view), front.seq, "me")
        assert front.missed == 0


def test_nothing_new_is_nothing_sent(tmp_path: Path) -> None:
    view = recorded.done(tmp_path).view()
    feed = Feed(view.id)
    assert feed.whole("me") is None and feed.heartbeat() is None
    assert isinstance(feed.update(view), RunMessage) and feed.seq == 1
    assert feed.update(view) is None and feed.seq == 1


def test_only_what_changed_is_sent(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    view = run.view()
    feed = Feed(view.id)
    feed.update(view)
    later = feed.update(run.view(CREATED + 61))
    assert isinstance(later, UpdateMessage)
    assert (later.after, later.seq, later.view) == (1, 2, {"elapsed": 61.0}) and set(later.said) == {"figures"}
    assert not later.log
    run.write(recompile(CREATED + 61, 7, 99))
    newest = feed.update(run.view(CREATED + 61))
    assert isinstance(newest, UpdateMessage)
    [entry] = newest.log
    assert entry["compile"]["nth"] == 7 and "compile_log" not in newest.view and newest.view["recompiles"] == 7
    assert size_of(plain(newest)) < 8_000


def test_compiles_that_change_their_order_are_sent_whole(tmp_path: Path) -> None:
    """A compile of another rank goes between those of the lead."""
    run, front = recorded.failed(tmp_path), FrontEnd()
    feed = Feed(run.files.id)
    front.take(feed.update(run.view()))
    run.write(first_compile(CREATED + 4, 1, site=recorded.EVAL))
    message = feed.update(run.view())
    assert isinstance(message, UpdateMessage) and "compile_log" in message.view and not message.log
    front.take(message)
    assert front.record == record(run.view())


def test_an_attempt_that_is_begun_anew(tmp_path: Path) -> None:
    """A device was busy: what the first attempt wrote is gone."""
    run, front = recorded.running(tmp_path), FrontEnd()
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id, patience=0.0)
    for events in ([], [first_compile(CREATED + 40)]):
        if events:
            for path in run.files.path.glob("rank-*"):
                path.unlink()
            run.write(*recorded.began(CREATED + 39), *events)
        model.refresh()
        front.take(feed.update(model.view()))
        assert front.record == record(model.view())
    assert len(front.record["view"]["compile_log"]) == 1


@pytest.mark.long
def test_ten_thousand_compiles_one_after_the_other(tmp_path: Path) -> None:
    run, front = recorded.long_run(tmp_path, compiles=1), FrontEnd()
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id)
    sent = []
    for first in range(1, 10_001, 500):
        run.write_many(recompile(CREATED + 2 + nth, nth) for nth in range(first, first + 500))
        model.refresh()
        message = feed.update(model.view())
        sent.append(size_of(plain(message)))
        front.take(message)
    newest = [entry["compile"]["nth"] for entry in front.record["view"]["compile_log"]]
    assert newest[:900] == list(range(10_000, 9_100, -1)) and len(newest) <= 1_000
    assert front.record["view"]["compiles"] == 10_001 and max(sent) <= COMM.total
    whole = feed.whole("me")
    assert whole is not None and size_of(whole.record) <= COMM.total


def test_compiles_with_many_inputs_stay_within_the_limit(tmp_path: Path) -> None:
    run, front = Recorded(tmp_path), FrontEnd()
    run.write(*recorded.began(CREATED))
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id)
    for first in range(0, 80, 4):
        inputs = recorded.inputs(128) * 100
        run.write_many(recompile(CREATED + nth, nth, inputs=inputs) for nth in range(first, first + 4))
        model.refresh()
        front.take(feed.update(model.view()))
    assert [entry["compile"]["nth"] for entry in front.record["view"]["compile_log"]] == list(range(79, -1, -1))
    whole = feed.whole("me")
    assert whole is not None and 0 < size_of(whole.record) <= COMM.total
    known = whole.record["view"]["compile_log"]
    assert front.record["view"]["compile_log"][: len(known)] == known


def test_a_loss_that_is_not_a_number_is_sent_once(tmp_path: Path) -> None:
    run, front = recorded.running(tmp_path), FrontEnd()
    run.write(Value(CREATED + 55, 0, name="loss", value="nan", step=441, low="nan", high="nan"))
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id, patience=0.0)
    model.refresh()
    front.take(feed.update(model.view()))
    [loss] = [one for one in front.record["view"]["values"] if one["name"] == "loss"]
    assert loss["last"] == "nan" and loss["not_finite_at"] == 441 and loss["points"][-1]["value"] == "nan"
    assert feed.update(model.view()) is None


# -- what may wait ---------------------------------------------------------------------------------------------------


def moved(view: RunView, step: int, **fields: Any) -> RunView:
    """The same run with one more value logged."""
    first, *others = view.values
    return dataclasses.replace(view, values=(dataclasses.replace(first, step=step), *others), **fields)


def test_curves_wait_while_the_run_goes_on_and_come_at_its_end(tmp_path: Path) -> None:
    clock, front = Clock(), FrontEnd()
    view = recorded.running(tmp_path).view()
    feed = Feed(view.id, clock)
    front.take(feed.update(view))
    assert feed.update(moved(view, 1_000)) is None, "curves were sent at once"
    later = feed.update(moved(view, 1_001, steps=1_001))
    assert isinstance(later, UpdateMessage) and not PATIENT & set(later.view)
    clock.now += PATIENCE + 0.1
    after = feed.update(moved(view, 1_002, steps=1_001))
    assert isinstance(after, UpdateMessage) and set(after.view) == {"values"}
    ended = moved(view, 1_003, live=False, state="done")
    last = feed.update(ended)
    assert isinstance(last, UpdateMessage) and "values" in last.view


def test_one_that_asks_gets_what_the_others_know(tmp_path: Path) -> None:
    """So that the next update fits for all."""
    view = recorded.running(tmp_path).view()
    feed, early, late = Feed(view.id, Clock()), FrontEnd(), FrontEnd()
    early.take(feed.update(view))
    early.take(feed.update(moved(view, 1_000, steps=1_000)))
    late.take(feed.whole("late"))
    assert late.record == early.record
    message = feed.update(moved(view, 1_001, steps=1_001))
    early.take(message)
    late.take(message)
    assert late.record == early.record and (early.missed, late.missed) == (0, 0)


def test_here_comes_every_two_seconds(tmp_path: Path) -> None:
    clock = Clock()
    view = recorded.running(tmp_path).view()
    feed = Feed(view.id, clock)
    feed.update(view)
    told = []
    for _ in range(100):
        clock.now += 0.1
        told.append(feed.heartbeat())
    seqs = [one.seq for one in told if one is not None]
    assert seqs == [1] * len(seqs) and len(seqs) == pytest.approx(10 / HEARTBEAT_EVERY, abs=1)
