"""What has changed since the last message, as a front end puts it together again."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.panel import recorded
from tests.panel.patches import patched
from tests.panel.recorded import CREATED, Recorded, first_compile, recompile
from tpu_magics.panel.feed import A_MINUTE, BURST, HEARTBEAT_EVERY, LONGEST, Feed, TokenBucket
from tpu_magics.panel.json_values import plain, size_of
from tpu_magics.panel.messages import RunMessage, UpdateMessage
from tpu_magics.panel.run_json import COMM, record
from tpu_magics.panel.run_state import RunModel
from tpu_magics.runs.events import Value


class FrontEnd:
    """What labextension/src/patch.ts does with what it is sent, after it went through JSON."""

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
        elif told["after"] != self.seq:
            self.missed += 1
        else:
            self.record, self.seq = patched(self.record, told["patch"]), told["seq"]

    @property
    def compiles(self) -> list[Any]:
        """The rows of compiles that it has."""
        return next(one["items"] for one in self.record["sections"] if one["key"] == "compiles")


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
        model, feed, front = RunModel(run.files, clock=lambda: now[0]), Feed(run.files.id, clock), FrontEnd()
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
    assert (later.after, later.seq, later.patch) == (1, 2, {"o": {"elapsed": {"=": "1 min 01 s"}}})
    run.write(recompile(CREATED + 61, 7, 99))
    newest = feed.update(run.view(CREATED + 61))
    assert isinstance(newest, UpdateMessage)
    [(_at, compiles)] = [
        (at, one) for at, one in newest.patch["o"]["sections"]["l"][3].items() if "items" in one.get("o", {})
    ]
    start, removed, [item] = compiles["o"]["items"]["l"]
    assert (start, removed, item["cells"][0]) == (0, 0, "#7"), "the other rows are not sent again"
    assert size_of(newest.patch) < 5_000


def test_a_compile_of_another_rank_goes_between_those_of_the_lead(tmp_path: Path) -> None:
    run, front = recorded.failed(tmp_path), FrontEnd()
    feed = Feed(run.files.id)
    front.take(feed.update(run.view()))
    run.write(first_compile(CREATED + 4, 1, site=recorded.EVAL))
    front.take(feed.update(run.view()))
    assert front.record == record(run.view()) and "rank 1" in front.compiles[1]["cells"][1]


def test_an_attempt_that_is_begun_anew(tmp_path: Path) -> None:
    """A device was busy: what the first attempt wrote is gone."""
    run, front = recorded.running(tmp_path), FrontEnd()
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id)
    for events in ([], [first_compile(CREATED + 40)]):
        if events:
            for path in run.files.path.glob("rank-*"):
                path.unlink()
            run.write(*recorded.began(CREATED + 39), *events)
        model.refresh()
        front.take(feed.update(model.view()))
        assert front.record == record(model.view())
    assert len(front.compiles) == 1


def test_many_compiles_stay_within_the_limit(tmp_path: Path) -> None:
    """Each with hundreds of inputs; the newest are there, and the number of the others."""
    run, front = Recorded(tmp_path), FrontEnd()
    run.write(*recorded.began(CREATED))
    model, feed, sent = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id), []
    for first in range(0, 400, 20):
        inputs = recorded.inputs(128) * 100
        run.write_many(recompile(CREATED + nth, nth, inputs=inputs) for nth in range(first, first + 20))
        model.refresh()
        message = feed.update(model.view())
        sent.append(size_of(plain(message)))
        front.take(message)
    numbers = [item["cells"][0] for item in front.compiles]
    assert numbers == [f"#{nth}" for nth in range(399, 399 - len(numbers), -1)] and 50 < len(numbers) <= COMM.compiles
    assert front.record == record(model.view()) and size_of(front.record) <= COMM.total
    assert max(sent[1:]) < 100_000
    left = f"{400 - len(numbers)} older compiles are in the run folder only."
    assert left in next(one["notes"] for one in front.record["sections"] if one["key"] == "compiles")


def test_a_loss_that_is_not_a_number_is_sent_once(tmp_path: Path) -> None:
    run, front = recorded.running(tmp_path), FrontEnd()
    run.write(Value(CREATED + 55, 0, name="loss", value="nan", step=441, low="nan", high="nan"))
    model, feed = RunModel(run.files, clock=lambda: CREATED + 60), Feed(run.files.id)
    model.refresh()
    front.take(feed.update(model.view()))
    loss = front.record["charts"][0]
    assert loss["points"][-1][1:] == ["nan", "nan", "nan"] and loss["warning"].endswith("441")
    assert feed.update(model.view()) is None


def test_one_that_asks_gets_what_the_others_know(tmp_path: Path) -> None:
    """So that the next update fits for all."""
    view = recorded.running(tmp_path).view()
    feed, early, late = Feed(view.id, Clock()), FrontEnd(), FrontEnd()
    early.take(feed.update(view))
    early.take(feed.update(dataclasses.replace(view, steps=1_000)))
    late.take(feed.whole("late"))
    assert late.record == early.record
    message = feed.update(dataclasses.replace(view, steps=1_001))
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


# -- how much may be sent --------------------------------------------------------------------------------------------


def spent(size: int, seconds: float = 60.0) -> list[float]:
    """When updates of this size are sent."""
    clock = Clock()
    bucket, sent = TokenBucket(clock=clock), []
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        if bucket.open:
            bucket.take(size)
            sent.append(clock.now)
    return sent


@pytest.mark.parametrize("size", [100, 1_400, 3_000, 9_000])
def test_a_minute_has_its_bytes_and_no_more(size: int) -> None:
    assert len(spent(size)) * size <= A_MINUTE
    assert len(spent(size)) == 120 or len(spent(size)) * size > A_MINUTE - 3 * BURST


def test_what_is_large_is_sent_all_the_same() -> None:
    """What waits is not less later: the interval does not grow."""
    sent = spent(500_000, 120)
    assert max(after - before for before, after in pairwise(sent)) <= LONGEST + 0.5
