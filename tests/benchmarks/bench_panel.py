"""How long it takes to read and render a long run: a folder of real records (100,000 steps, 1,000 compiles with inputs,
differences and causes).
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks import fresh, report, timing
from tests.panel import recorded
from tpu_magics.panel.model import RunModel
from tpu_magics.panel.page import to_html, to_text
from tpu_magics.panel.sections import compile_rows, sections

TITLE = "Rendering a long run"
STEPS, COMPILES = 100_000, 1_000
TARGET = 1.0  # seconds
WHOLE, AGAIN = "read the folder and render to html", "look again and render the live parts"


def render(steps: int, compiles: int, rounds: int) -> list[dict[str, Any]]:
    """In a fresh process: the whole way from the folder to html, and one look of a live panel that has read it."""
    with fresh.scratch_folder() as folder:
        run = recorded.long_run(folder, steps, compiles)
        on_disk = sum(path.stat().st_size for path in run.files.path.iterdir())
        whole = [timing.seconds(lambda: _from_folder(run)) for _ in range(rounds)]
        model = RunModel(run.files)
        model.refresh()
        looks = [timing.seconds(lambda: _look(model)) for _ in range(rounds)]
        view = model.view()
    parts = [*sections(view).values(), *(html for _key, html in compile_rows(view))]
    sizes = {WHOLE: len(to_html(view).encode()), AGAIN: len("".join(parts).encode())}
    return [_row(WHOLE, whole, on_disk, sizes), _row(AGAIN, looks, on_disk, sizes)]


def _row(what: str, times: list[float], on_disk: int, sizes: dict[str, int]) -> dict[str, Any]:
    return {
        **timing.row(what, times),
        "kB of html": sizes[what] / 1000,
        "MB of records": on_disk / 1e6,
    }


def _from_folder(run: recorded.Recorded) -> None:
    model = RunModel(run.files)
    model.refresh()
    view = model.view()
    assert to_html(view) and to_text(view) and view.compiles, "the run was not read"


def _look(model: RunModel) -> None:
    model.refresh()
    view = model.view()
    sections(view)
    compile_rows(view)


def measure(rounds: int = 11, steps: int = STEPS, compiles: int = COMPILES) -> list[dict[str, Any]]:
    """Two rows."""
    rows: list[dict[str, Any]] = fresh.call(__name__, "render", steps, compiles, rounds)
    return rows


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    whole = rows[0]
    return [
        f"A run of {STEPS:,} steps and {COMPILES:,} compiles, read from its folder; text is rendered as well.",
        f"Target: less than {TARGET:g} s: {report.met(whole['s, slowest'] < TARGET)} ({whole['s, slowest']:.2f} s).",
    ]
