"""How long it takes to read and render a long run: a folder of real records (100,000 steps, 1,000 compiles with inputs,
differences and causes), and how much an update of it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchmarks import fresh, report, timing
from tests.panel import recorded
from tpu_magics.panel import live
from tpu_magics.panel.feed import A_MINUTE, Feed
from tpu_magics.panel.json_values import size_of
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.panel.run_state import RunModel
from tpu_magics.runs.events import Event, Steps, Value

TITLE = "Rendering a long run"
STEPS, COMPILES = 100_000, 1_000
TARGET = 1.0  # seconds
WHOLE = "read the folder; text, html and record"
UPDATE, WIDGETS = "an update for the extension", "an update for widgets"
ENVELOPE = 500  # bytes of a comm's message around a patch, about
UPDATES = 120  # a minute


def render(steps: int, compiles: int, rounds: int) -> list[dict[str, Any]]:
    """In a fresh process: the whole way from the folder, and updates for those who show the run."""
    with fresh.scratch_folder() as folder:
        run = recorded.long_run(folder, steps, compiles)
        on_disk = sum(path.stat().st_size for path in run.files.path.iterdir())
        whole = [timing.seconds(lambda: _from_folder(run)) for _ in range(rounds)]
        model = RunModel(run.files)
        model.refresh()
        bundle = to_bundle(model.view())
        rows = [_row(WHOLE, whole, on_disk, size_of(bundle))]
        return [*rows, *_updates(run, model, steps, rounds, on_disk)]


def _updates(
    run: recorded.Recorded, model: RunModel, steps: int, rounds: int, on_disk: int
) -> Iterator[dict[str, Any]]:
    """Of half a second with steps of 5 ms."""
    feed, sizes = Feed(run.files.id), [0]
    feed.begin(model.view())

    def update() -> None:
        run.write(*_half_second(steps + 100 * len(sizes), len(sizes)))
        model.refresh()
        message = feed.update(model.view())
        sizes.append(size_of(message.patch) + ENVELOPE)  # type: ignore[union-attr]

    times = [timing.seconds(update) for _ in range(rounds)]
    yield _row(UPDATE, times, on_disk, max(sizes))
    view = model.view()
    parts = [timing.seconds(lambda: live.pieces(page(view, live.COMPILES, live.POINTS))) for _ in range(rounds)]
    shown = live.pieces(page(view, live.COMPILES, live.POINTS))
    yield _row(WIDGETS, parts, on_disk, len("".join(shown["head"]).encode()))


def _half_second(step: int, at: int) -> tuple[Event, ...]:
    t = recorded.CREATED + 100_000 + at / 2
    return (
        Steps(t, 0, total=step, n=100, seconds=0.5),
        Value(t, 0, "loss", 1 / step, step, 100, low=0.0, high=2 / step),
    )


def _row(what: str, times: list[float], on_disk: int, size: int) -> dict[str, Any]:
    return {**timing.row(what, times), "kB": size / 1000, "MB of records": on_disk / 1e6}


def _from_folder(run: recorded.Recorded) -> None:
    model = RunModel(run.files)
    model.refresh()
    view = model.view()
    assert to_bundle(view)["text/html"] and view.compiles, "the run was not read"


def measure(rounds: int = 11, steps: int = STEPS, compiles: int = COMPILES) -> list[dict[str, Any]]:
    """Three rows."""
    rows: list[dict[str, Any]] = fresh.call(__name__, "render", steps, compiles, rounds)
    return rows


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    whole, update = rows[0], rows[1]
    minute = UPDATES * update["kB"]
    return [
        f"A run of {STEPS:,} steps and {COMPILES:,} compiles, read from its folder.",
        f"Target: less than {TARGET:g} s: {report.met(whole['s, slowest'] < TARGET)} ({whole['s, slowest']:.2f} s).",
        f"Two updates a second for the extension, at steps of 5 ms: {minute:.0f} kB a minute; target: at most "
        f"{A_MINUTE / 1000:.0f} kB: {report.met(1000 * minute <= A_MINUTE)}.",
    ]
