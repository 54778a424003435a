"""TensorFlow's trainings go on after the end of their process, as the unbroken run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import forks, overlay

pytestmark = [pytest.mark.process, pytest.mark.timeout(280)]

PROGRAM = Path(__file__).with_name("keras_program.py")


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    """Of all tests with TensorFlow: none of them has to end it."""
    forks.server("tensorflow keras", overlay.python_path())


def leg(what: str, stop: int, place: str, folder: Path) -> Any:
    """What a process reports; None if it is ended in the middle."""
    printed = overlay.run(PROGRAM, what, str(stop), place, cwd=folder, TPU_MAGICS_RUNS=str(folder / "runs"))
    return None if stop else overlay.last_json(printed)


@pytest.mark.parametrize("what", ["twice", "dataset", "own"])
def test_it_ends_as_the_unbroken_run(what: str, tmp_path: Path) -> None:
    whole = leg(what, 0, "", tmp_path)
    place = str(tmp_path / "place")
    assert leg(what, 19, place, tmp_path) is None
    assert leg(what, 10, place, tmp_path) is None
    found = leg(what, 0, place, tmp_path)
    assert found["resumed"] and found["resumed"][0] >= 14
    assert (found["value"], found["weights"]) == (whole["value"], whole["weights"])
