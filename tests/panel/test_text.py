"""A page as text: short, the reason first."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.panel import recorded
from tests.panel.hostile import EVIL, PLACES, told_in_run_json
from tests.panel.recorded import CREATED, Recorded, first_compile, losses, optimizer_state, started
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.text import FAILED, HEALTHY, to_text
from tpu_magics.runs.events import RuleFinding, Site, Steps, Value


@pytest.mark.parametrize("name", recorded.RUNS)
def test_a_text_is_short_and_fits_into_a_terminal(tmp_path: Path, name: str) -> None:
    made = page(recorded.RUNS[name](tmp_path).view())
    lines = to_text(made).splitlines()
    assert len(lines) <= (FAILED if made.failure or made.problems else HEALTHY)
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith(f"{made.name}: {made.symbol} {made.state}")
    assert lines[-1] == f"%tpu_panel {made.id} --all shows everything."
    assert all(each in "\n".join(lines) for figure in made.figures for each in (figure.label, figure.value))


def test_a_healthy_run_in_lines(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2), optimizer_state(CREATED + 3, 1), name="quickstart")
    run.write(Steps(CREATED + 9, 0, 64, 64, 6.0), *losses(CREATED + 3, 64))
    run.update(status="done", seconds=9.5, models=["model"])
    assert to_text(page(run.view())).splitlines() == [
        "quickstart: ✓ done · 9 s · 1 rank on XLA:CPU · updated in the notebook: model",
        "Steps 64 · Step time 93.8 ms (median) · Compiles 2 (38 % of the time)",
        "Recompiles 0 (and 1 expected)",
        "loss  █▇▆▆▅▄▄▄▃▃▃▃▂▂▂▂▂▂▂▁▁▁▁▁  2.3 → 0.1426",
        "Memory: host n/a (no sample)",
        f"%tpu_panel {run.files.id} --all shows everything.",
    ]


def test_a_failed_run_says_the_reason_before_all_else(tmp_path: Path) -> None:
    lines = to_text(page(recorded.failed(tmp_path).view())).splitlines()
    assert lines[1:4] == [
        "Rank 1 failed: ValueError: Expected input batch_size (32) to match target batch_size (31).",
        "Why: The last batch of rank 1 has 31 rows, and its labels 32.",
        "What to do: Use drop_last=True in the DataLoader, or labels of the same rows.",
    ]
    assert "        outputs = model(**batch)" in lines, "its blanks are kept"


def test_long_reasons_leave_room_for_the_figures(tmp_path: Path) -> None:
    failure = {"what": "w " * 2_000, "why": "y " * 2_000, "todo": "t " * 2_000, "details": ["d" * 900] * 90}
    made = page(Recorded(tmp_path, status="failed", failure=failure).view())
    lines = to_text(made).splitlines()
    assert len(lines) <= FAILED and any(line.startswith("Steps n/a") for line in lines)
    assert sum(line.startswith("    d") for line in lines) <= 8


def test_many_problems_are_counted(tmp_path: Path) -> None:
    run = started(tmp_path)
    for line in range(30):
        site = Site(line, "In [1]", line + 1, "", "x.item()")
        run.write(
            RuleFinding(CREATED, 0, "TPU102", "values", site, 1, "It reads.", "It waits.", "Do not.", name="read")
        )
    made = page(run.view())
    text = to_text(made)
    assert text.count("! TPU102 read") == 3 and "… and 27 more." in text
    assert to_text(made, everything=True).count("! TPU102 read") == 30


def test_everything_is_there_when_asked_for(tmp_path: Path) -> None:
    made = page(recorded.running(tmp_path).view())
    text = to_text(made, everything=True)
    for one in made.sections:
        assert f"{one.title}: " in text
        assert all(fact.label in text for fact in one.facts)
    assert "history.append(total.cpu())" in text and made.footer in text


def test_a_curve_with_a_value_that_broke(tmp_path: Path) -> None:
    logged: list[float | str] = [1.0, 2.0, "nan"]
    run = started(tmp_path, *(Value(CREATED + 2, 0, "loss", value, at) for at, value in enumerate(logged)))
    assert "loss  ▁█!  1 → nan  ! not a finite number at step 2" in to_text(page(run.view()))


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_no_control_character_reaches_a_terminal(tmp_path: Path, evil: str) -> None:
    views = [started(tmp_path / str(at), event(evil)).view() for at, event in enumerate(PLACES.values())]
    views.append(dataclasses.replace(told_in_run_json(tmp_path, evil, "run"), detail=evil))
    for view in views:
        for everything in (False, True):
            text = to_text(page(view), everything)
            assert text.replace("\n", "").isprintable() and "\x1b" not in text
