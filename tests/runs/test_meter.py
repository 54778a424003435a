"""How much a run writes, whatever its step time, and what is in the records."""

from __future__ import annotations

import json
import math
import threading
import time
from decimal import Decimal
from pathlib import Path

import pytest

from tests.launch.launching import wait_until
from tests.runs.builders import in_child, in_threads
from tpu_magics.runs.events import Memory, Steps, Value, Warned, only
from tpu_magics.runs.meter import MemoryMeter, StepMeter, ValueMeter, plain_value
from tpu_magics.runs.reader import Tail
from tpu_magics.runs.writer import EventWriter

MEGABYTE = 1_000_000
START = 1790000000.123456


class FakeClock:
    """A clock that goes as fast as the test wants."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def writer(tmp_path: Path) -> EventWriter:
    return EventWriter(tmp_path / "rank-0.jsonl", 0)


def simulate(writer: EventWriter, clock: FakeClock, seconds: float, names: list[str], steps: int = 100_000) -> int:
    """Train with a fake clock. Returns the bytes of the record file."""
    step_meter, value_meter = StepMeter(writer, clock), ValueMeter(writer, clock)
    for step in range(1, steps + 1):
        clock.now = START + step * seconds
        step_meter.step()
        for index, name in enumerate(names):
            value_meter.log(name, math.sin(step * 0.001 + index) / 3, step)
    step_meter.flush()
    value_meter.flush()
    writer.close()
    return writer.path.stat().st_size


@pytest.mark.parametrize("seconds", [0.005, *(pytest.param(long, marks=pytest.mark.long) for long in (0.6, 1.0, 10.0))])
def test_100_000_steps_with_three_values_take_at_most_one_megabyte(
    writer: EventWriter, clock: FakeClock, seconds: float
) -> None:
    names = ["train/loss", "learning_rate", "grad_norm"]
    assert simulate(writer, clock, seconds, names) <= MEGABYTE
    events = Tail(writer.path).read()
    steps = only(events, Steps)
    assert steps[-1].total == sum(event.n for event in steps) == 100_000
    assert sum(event.seconds for event in steps) == pytest.approx(100_000 * seconds, rel=1e-6)
    for index, name in enumerate(names):
        values = [event for event in only(events, Value) if event.name == name]
        assert [event.n for event in values[:1000]] == [1] * 1000
        assert [event.step for event in values[:1000]] == list(range(1, 1001))
        assert sum(event.n for event in values) == 100_000
        assert (values[-1].step, values[-1].value) == (100_000, math.sin(100 + index) / 3)
        assert max(event.n for event in values) < 0.02 * 100_000, "what is held back is about 1 % of the run"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"metric/{n:02d}" for n in range(64)], marks=pytest.mark.long),
        ['"\x01' * 100],
        pytest.param(["loss", "loss", "loss/" * 30], marks=pytest.mark.long),
    ],
)
def test_many_names_or_long_ones_take_no_more(writer: EventWriter, clock: FakeClock, names: list[str]) -> None:
    assert simulate(writer, clock, 1.0, names, steps=30_000 if len(names) == 64 else 100_000) <= MEGABYTE


@pytest.mark.parametrize("steps", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_names_that_come_one_after_another_take_no_more(writer: EventWriter, clock: FakeClock, steps: int) -> None:
    meter = ValueMeter(writer, clock)
    for step in range(steps):
        for number in range(min(64, 1 + step * 64 // steps)):
            meter.log(f"metric/{number}", step / 7, step)
    meter.flush()
    assert writer.path.stat().st_size <= MEGABYTE


def test_long_texts_take_no_more(writer: EventWriter, clock: FakeClock) -> None:
    meter = ValueMeter(writer, clock)
    for step in range(100_000):
        meter.log("state", "\x01" * 500, step)
    meter.flush()
    assert writer.path.stat().st_size <= MEGABYTE


def test_steps_are_recorded_at_most_twice_a_second(writer: EventWriter, clock: FakeClock) -> None:
    meter = StepMeter(writer, clock)
    totals = []
    for _ in range(1000):
        clock.now += 0.01
        totals.append(meter.step())
    meter.flush()
    meter.flush()
    assert totals == list(range(1, 1001)) and meter.total == 1000
    events = only(Tail(writer.path).read(), Steps)
    assert 19 <= len(events) <= 21
    assert events[0].t == pytest.approx(START + 0.5, abs=0.02)
    assert events[-1].total == sum(event.n for event in events) == 1000
    assert sum(event.seconds for event in events) == pytest.approx(10.0)


def test_a_record_tells_when_its_last_step_was_done(writer: EventWriter, clock: FakeClock) -> None:
    meter = StepMeter(writer, clock)
    clock.now += 0.25
    meter.step()
    clock.now += 100
    meter.flush()
    assert Tail(writer.path).read() == [Steps(round(START + 0.25, 3), 0, total=1, n=1, seconds=0.25)]


def test_steps_are_written_while_the_training_waits(
    writer: EventWriter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones before it evaluates, or waits for data; as seldom as while it steps."""
    monkeypatch.setattr("tpu_magics.runs.meter._LOOK_EVERY", 0.01)
    written = Tail(writer.path)
    with (meter := StepMeter(writer, clock)).written_while_waiting():
        clock.now += 0.25
        meter.step()
        time.sleep(0.05)
        assert written.read() == [], "half a second has not passed"
        clock.now += 0.5
        assert wait_until(lambda: writer.path.exists() and writer.path.stat().st_size)
        assert written.read() == [Steps(round(START + 0.25, 3), 0, total=1, n=1, seconds=0.25)]
        clock.now += 100
    meter.flush()
    assert written.read() == []


def test_without_a_thread_the_steps_are_counted(writer: EventWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    with (meter := StepMeter(writer)).written_while_waiting():
        meter.step()
    meter.flush()
    assert [event.total for event in only(Tail(writer.path).read(), Steps)] == [1]


def test_no_step_gives_no_record(writer: EventWriter, clock: FakeClock) -> None:
    meter = StepMeter(writer, clock)
    clock.now += 100
    meter.flush()
    assert Tail(writer.path).read() == []


def test_a_clock_that_is_set_back_does_not_silence_a_run(writer: EventWriter, clock: FakeClock) -> None:
    meter = StepMeter(writer, clock)
    for jump in (1.0, -3600.0, 1.0, 1.0):
        clock.now += jump
        meter.step()
    events = only(Tail(writer.path).read(), Steps)
    assert [event.total for event in events] == [1, 2, 3, 4]
    assert [event.seconds for event in events] == [1.0, 0.0, 1.0, 1.0]


def test_steps_of_threads_are_all_counted(writer: EventWriter) -> None:
    meter = StepMeter(writer)
    in_threads(*[lambda: [meter.step() for _ in range(5000)]] * 4)
    meter.flush()
    assert meter.total == 20_000
    assert sum(event.n for event in only(Tail(writer.path).read(), Steps)) == 20_000


def test_a_writer_that_failed_does_not_stop_the_count(tmp_path: Path, clock: FakeClock) -> None:
    writer = EventWriter(tmp_path / "gone" / "rank-0.jsonl", 0)
    meter, values = StepMeter(writer, clock), ValueMeter(writer, clock)
    for _ in range(10):
        clock.now += 1
        meter.step()
        values.log("loss", 1.0, meter.total)
    values.flush()
    assert meter.total == 10 and writer.failed is not None


@pytest.mark.process
def test_a_child_of_the_training_counts_and_logs_nothing(writer: EventWriter, clock: FakeClock) -> None:
    meter, values = StepMeter(writer, clock), ValueMeter(writer, clock)
    values.log("loss", 1.0, 1)

    def work() -> int:
        thread = threading.Thread(target=lambda: (meter.step(), values.log("loss", 2.0, 2), values.flush()))
        thread.daemon = True
        thread.start()
        thread.join(10)
        return meter.total + 2 * thread.is_alive()

    with meter._lock, values._lock:
        assert in_child(work) == 0
    assert len(Tail(writer.path).read()) == 1


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError

    def __float__(self) -> float:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.1, 0.1),
        (3, 3),
        (True, 1),
        (False, 0),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (Decimal("0.5"), 0.5),
        (10**20, 1e20),
        (10**400, "1" + "0" * 199),
        (10**5000, "<int without a text>"),
        ("epoch 3", "epoch 3"),
        ("3.5", "3.5"),
        (b"3.5", "b'3.5'"),
        ("x" * 500, "x" * 200),
        (None, "None"),
        ([1, 2], "[1, 2]"),
        (1 + 2j, "(1+2j)"),
        (Unreadable(), "<Unreadable without a text>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_becomes(value: object, kept: object) -> None:
    plain = plain_value(value)
    assert plain == kept and type(plain) is type(kept)
    assert json.loads(json.dumps(plain, allow_nan=False)) == kept


def test_numpy_numbers_stay_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert plain_value(numpy.float32(0.5)) == 0.5
    assert type(plain_value(numpy.int64(7))) is int
    assert plain_value(numpy.array(2.5)) == 2.5
    assert plain_value(numpy.bool_(True)) == 1.0
    assert plain_value(numpy.array([1.0, 2.0])) == "[1. 2.]"


def aggregated(writer: EventWriter, clock: FakeClock, values: list[object]) -> Value:
    """The one record that stands for `values`, logged when 10,000 have been."""
    meter = ValueMeter(writer, clock)
    for step in range(10_000):
        meter.log("loss", 0, step)
    meter.flush()
    already = len(Tail(writer.path).read())
    for step, value in enumerate(values):
        meter.log("loss", value, 10_000 + step)
    meter.flush()
    (event,) = Tail(writer.path).read()[already:]
    assert isinstance(event, Value) and event.n == len(values) and event.step == 10_000 + len(values) - 1
    return event


@pytest.mark.parametrize(
    ("values", "last", "low", "high"),
    [
        ([3.0, 1, 2.0], 2.0, 1, 3.0),
        ([1.0, float("nan"), 3.0], 3.0, 1.0, "nan"),
        ([float("nan"), float("nan")], "nan", "nan", "nan"),
        ([1.0, float("inf"), float("-inf")], "-inf", "-inf", "inf"),
        (["warm", 2.0, "hot"], "hot", 2.0, 2.0),
        (["warm", "hot"], "hot", None, None),
        ([5.0], 5.0, None, None),
    ],
)
def test_a_chunk_has_the_last_value_and_the_range(
    writer: EventWriter, clock: FakeClock, values: list[object], last: object, low: object, high: object
) -> None:
    event = aggregated(writer, clock, values)
    assert (event.value, event.low, event.high) == (last, low, high)


def test_only_64_names_are_recorded_and_one_warning(writer: EventWriter, clock: FakeClock) -> None:
    meter = ValueMeter(writer, clock)
    for turn in range(3):
        for number in range(70):
            meter.log(f"layer.{number}", turn, turn)
    meter.flush()
    events = Tail(writer.path).read()
    assert {event.name for event in only(events, Value)} == {f"layer.{number}" for number in range(64)}
    (warned,) = only(events, Warned)
    assert warned.code == "too-many-values"
    expected = "Only the first 64 names of logged values are recorded; 'layer.64' and later ones are not."
    assert warned.text == expected


def test_memory_is_thinned_and_keeps_its_peaks(tmp_path: Path, clock: FakeClock) -> None:
    writer = EventWriter(tmp_path / "supervisor.jsonl", -1)
    meter = MemoryMeter(writer, 3, clock)
    for sample in range(20_000):
        spike = 10**9 if sample == 15_001 else 0
        meter.sample(5 * 10**8 + sample + spike, None if sample < 10 else 10**8)
        clock.now += 0.5
    meter.flush()
    events = only(Tail(writer.path).read(), Memory)
    assert {event.rank for event in events} == {3}
    assert events[0] == Memory(round(START, 3), 3, rss=5 * 10**8, pss=None)
    assert max(event.rss for event in events) == meter.peak_rss == 15 * 10**8 + 15_001
    assert meter.peak_pss == 10**8
    assert writer.path.stat().st_size < 100_000
