"""The checklist's item about the TPU's memory: what it says of which records. The others are tested in
tests/magics/test_check.py and tests/check."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.panel import recorded
from tpu_magics.check.cells import CodeCell, cell_of
from tpu_magics.launch import rule_check
from tpu_magics.runs import preflights

pytestmark = pytest.mark.usefixtures("fresh_session")

TRAIN = """
import torch_xla
def train(model):
    for batch in batches:
        model(batch).backward()
        torch_xla.sync()
"""
WHEN = time.mktime((2026, 10, 1, 14, 20, 0, 0, 0, -1))


def note(function: str, target: str, status: str, needed: float | None = 3.1, t: float = WHEN) -> None:
    size = None if needed is None else int(needed * 2**30)
    available = None if needed is None else int(15.75 * 2**30)
    preflights.note(preflights.Record(function, target, status, size, available, t))


def item(name: str = "", code: str = TRAIN) -> rule_check.ChecklistItem:
    cells: list[CodeCell] = [cell_of(code)]
    found = next(
        one for one in rule_check.checklist(cells, [], *([name] if name else [])) if one.question.startswith("Fits")
    )
    assert found.question == "Fits in the TPU's memory"
    return found


def test_without_a_preflight_it_is_not_known_and_the_magic_is_named() -> None:
    assert item().state == "unknown"
    assert item().evidence == (
        "Not compiled for a TPU yet. Compile it without a TPU: %tpu_preflight train ... --target v5e-8."
    )
    assert "%tpu_preflight FUNCTION ..." in item(code="x = 1").evidence


def test_what_fits_passes() -> None:
    note("train", "v5litepod-8", "fits")
    assert item().state == "passed"
    assert item().evidence == "train on v5litepod-8 (2026-10-01 14:20): fits, needs 3.10 of 15.75 GiB HBM."


@pytest.mark.parametrize(
    ("status", "needed", "state", "says"),
    [
        ("too-large", 183.87, "failed", "does not fit, needs 183.87 of 15.75 GiB HBM."),
        ("too-large", None, "failed", "does not fit."),
        ("refused", None, "failed", "rejected by the TPU compiler."),
        ("failed", None, "unknown", "no result."),
    ],
)
def test_one_target_that_does_not_take_it_decides(status: str, needed: float | None, state: str, says: str) -> None:
    note("train", "v6e-8", "fits")
    note("train", "v5litepod-8", status, needed)
    assert item().state == state
    assert says in item().evidence and "train on v6e-8 (2026-10-01 14:20): fits" in item().evidence


def test_only_the_newest_preflight_counts() -> None:
    note("train", "v4-8", "too-large", 40, t=WHEN - 60)
    note("train", "v5litepod-8", "fits")
    assert item().state == "passed" and "v4-8" not in item().evidence


def test_functions_of_the_cells_count_before_others() -> None:
    note("train", "v5litepod-8", "fits")
    note("elsewhere", "v5litepod-8", "too-large", 40, t=WHEN + 60)
    assert item().state == "passed"
    assert item(code="x = 1").evidence.startswith("elsewhere on v5litepod-8")


def test_with_a_name_only_its_own_count() -> None:
    note("other", "v5litepod-8", "fits")
    assert item("train").state == "unknown" and "%tpu_preflight train ..." in item("train").evidence
    note("train", "v5litepod-8", "too-large", 20, t=WHEN - 60)
    assert item("train").state == "failed" and item("other").state == "passed"


def tried() -> rule_check.ChecklistItem:
    return next(
        one for one in rule_check.checklist([cell_of(TRAIN)], []) if one.question.startswith("Trained some steps")
    )


def test_a_run_of_this_notebook_is_looked_at_before_anothers(runs: Path) -> None:
    theirs = {"notebook": "/home/me/eval.ipynb", "kernel": "k", "pid": 1, "pid_started": 2}
    recorded.done(runs).update(name="theirs", created=WHEN + 60, **theirs)
    assert (
        tried().state == "passed" and "The run theirs (of another notebook, eval.ipynb) on XLA:CPU" in tried().evidence
    )
    recorded.done(runs).update(name="mine", created=WHEN)
    assert tried().evidence.startswith("The run mine on XLA:CPU (2026-10-01 14:20)")
