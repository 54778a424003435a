"""How often front ends are told of a run, and what that costs; without a kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.recorded import CREATED, Recorded
from tpu_magics.launch.notebook import SafeObserver
from tpu_magics.magics import front_ends, lab
from tpu_magics.magics.front_ends import FrontEnds
from tpu_magics.panel.feed import A_MINUTE, TokenBucket
from tpu_magics.panel.json_values import plain, size_of
from tpu_magics.panel.run_state import SharedView
from tpu_magics.runs.events import Steps


class FakeDesk:
    """Stands for lab.Lab: notes what is told."""

    def __init__(self, heard: bool = True) -> None:
        self.heard, self.every, self.answers = heard, 0.0, True
        self.all: list[Any] = []

    def tell(self, *messages: Any) -> None:
        self.all += messages

    def announce(self) -> None:
        self.all.append("hello")

    @property
    def types(self) -> list[str]:
        return [getattr(one, "type", one) for one in self.all]


class Counted(SharedView):
    """A reading that counts how often it is asked. `breaks`: it fails."""

    looks = 0
    breaks = False

    def view(self) -> Any:
        self.looks += 1
        if self.breaks:
            raise ValueError("no view")
        return super().view()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDesk]:
    made = FakeDesk()
    monkeypatch.setattr(lab, "current", made)
    monkeypatch.setattr(front_ends, "_newest", None)
    monkeypatch.setattr(front_ends, "SHARE", 1e9)
    yield made


def follow(run: Recorded, answers: bool = True) -> tuple[front_ends.LabRun, Counted]:
    reading = Counted(run.files)
    return front_ends.follow(run.files, lambda: None, reading, answers), reading


def step(run: Recorded, total: int) -> None:
    run.write(Steps(CREATED + total, 0, total=total, n=1, seconds=1.0))


def test_nothing_is_read_where_nobody_listens(tmp_path: Path, desk: FakeDesk) -> None:
    desk.heard = False
    followed, reading = follow(recorded.running(tmp_path))
    for _ in range(50):
        followed.look()
    followed.settle()
    assert reading.looks == 0 and desk.all == ["hello"]


def test_a_run_is_told_from_its_beginning_to_its_end(tmp_path: Path, desk: FakeDesk) -> None:
    run = recorded.running(tmp_path)
    followed, _reading = follow(run)
    for total in range(441, 444):
        step(run, total)
        followed.look()
    run.update(status="done", seconds=60.0)
    followed.settle()
    assert desk.types == ["hello", "run", "update", "update", "run"]
    assert desk.all[-1].record["state"] == "done" and not followed.live
    followed.look()
    followed.settle()
    assert desk.types[5:] == ["run"], "it looks at a run that has ended"


@pytest.mark.long  # it takes time by the clock
def test_updates_come_as_often_as_was_asked(tmp_path: Path, desk: FakeDesk) -> None:
    desk.every = 0.3
    run = recorded.running(tmp_path)
    followed, reading = follow(run)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        followed.look()
        time.sleep(0.01)
    assert 2 <= reading.looks <= 4


@pytest.mark.long
def test_updates_take_a_small_part_of_the_time(tmp_path: Path, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "SHARE", 0.1)
    run = recorded.long_run(tmp_path, compiles=200)
    followed, reading = follow(run)
    reading.anew()  # what was written before is read once
    began, spent, total = time.monotonic(), 0.0, 100_000
    while time.monotonic() - began < 2.0:
        total += 1
        step(run, total)
        at = time.thread_time()
        followed.look()
        spent += time.thread_time() - at
        time.sleep(0.005)
    assert spent / (time.monotonic() - began) < 0.3 and desk.types.count("run") == 1


def test_whole_runs_come_where_nobody_can_ask(tmp_path: Path, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(front_ends, "A_MINUTE", 10**9)
    run = recorded.running(tmp_path)
    followed, _reading = follow(run, answers=False)
    followed._bucket = TokenBucket(clock=lambda: clock[0])
    for total in range(441, 471):
        step(run, total)
        clock[0] += 1.0
        followed.look()
    told = [one for one in desk.types if one in ("run", "update")]
    assert told == ["run", *["update"] * 9] * 3


def test_updates_wait_where_a_minute_has_had_its_bytes(
    tmp_path: Path, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run = recorded.running(tmp_path)
    followed, _reading = follow(run)
    followed._bucket, followed._feed._clock = TokenBucket(clock=lambda: clock[0]), lambda: clock[0]
    for nth in range(7, 127):  # each with a new compile, which takes kilobytes
        run.write(recorded.recompile(CREATED + nth, nth, nth))
        step(run, 441 + nth)
        clock[0] += 0.5
        followed.look()
    sizes = [size_of(plain(one)) for one in desk.all if getattr(one, "type", "") == "update"]
    assert len(sizes) > 20 and sum(sizes) <= A_MINUTE
    assert desk.types.count("here") > 20


def test_what_fails_is_not_told_and_stops_nothing(tmp_path: Path, desk: FakeDesk) -> None:
    followed, reading = follow(recorded.running(tmp_path))
    reading.breaks = True
    followed.look()
    reading.breaks = False
    followed.look()
    assert desk.types == ["hello", "run"]


def test_a_panel_that_breaks_leaves_the_extension(tmp_path: Path, desk: FakeDesk) -> None:
    class Broken:
        def look(self) -> None:
            raise ValueError("no such part")

        def settle(self) -> None: ...

        def close(self, why: str) -> None: ...

        def answer(self, *_: Any) -> bool:
            return False

    said: list[str] = []
    followed, _reading = follow(recorded.running(tmp_path))
    panel: Any = Broken()
    both = SafeObserver(FrontEnds(panel, followed, None, said.append), said.append)
    for _ in range(3):
        both.look()
    both.settle()
    assert said == ["The panel stopped because of an error, the run continues: ValueError: no such part"]
    assert desk.types[:2] == ["hello", "run"] and desk.types[-1] == "run"


def test_a_mailbox_that_breaks_leaves_the_rest(tmp_path: Path, desk: FakeDesk) -> None:
    class Torn:
        looks = 0

        def look(self, *_: Any) -> None:
            self.looks += 1
            raise RuntimeError("torn")

    said: list[str] = []
    run = recorded.running(tmp_path)
    followed = front_ends.follow(run.files, lambda: None, SharedView(run.files), answers=True, hears=True)
    desk.answers = False
    mailbox: Any = Torn()
    both = SafeObserver(FrontEnds(None, followed, mailbox, said.append), said.append)
    for total in range(441, 444):
        step(run, total)
        both.look()
    assert said == ["Clicks wait until the cell ends; the run continues: RuntimeError: torn"] and mailbox.looks == 1
    assert desk.types[:3] == ["hello", "hello", "run"] and followed.live and not (followed.answers or followed.hears)


def test_front_ends_learn_that_a_run_is_followed_no_longer(tmp_path: Path, desk: FakeDesk) -> None:
    """Where the observer has failed: what they show stands still, and the run goes on."""
    run = recorded.running(tmp_path)
    followed, _reading = follow(run)
    followed.close("ValueError: no such part")
    assert desk.types == ["hello", "hello"] and not followed.live and followed.goes_on
    run.update(status="done", seconds=60.0)
    assert not followed.goes_on


@pytest.mark.parametrize(("between", "says"), [(True, ["run"]), (False, ["run", "hello"])])
def test_at_the_end_front_ends_learn_whether_a_busy_kernel_still_answers(
    tmp_path: Path, desk: FakeDesk, between: bool, says: list[str]
) -> None:
    """ipykernel 6 answers while it waits for a run, and while no other cell."""
    desk.answers = between
    run = recorded.running(tmp_path)
    followed, _reading = follow(run)
    followed.look()
    run.update(status="done", seconds=60.0)
    followed.settle()
    assert desk.types[2:] == says
    followed.settle()
    assert desk.types.count("hello") == len(says)


def test_the_same_run_is_followed_once(tmp_path: Path, desk: FakeDesk) -> None:
    """A panel is attached to a run that had none."""
    run = recorded.running(tmp_path)
    first, _reading = follow(run)
    assert follow(run)[0] is first and front_ends.following() is first
    other, _reading = follow(recorded.running(tmp_path, "another"))
    assert other is not first and front_ends.following() is other and desk.types == ["hello", "hello"]


def test_those_who_look_together_read_once(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    shared, fresh = SharedView(run.files, 10.0), SharedView(run.files)
    assert shared.view() is shared.view() and fresh.view() is not fresh.view()
    step(run, 500)
    assert shared.view().steps == 440 and shared.anew().steps == 500 and shared.view().steps == 500
