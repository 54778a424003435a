"""TensorFlow's trainings go on after the end of their process, as the unbroken run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests import forks, overlay

pytestmark = [pytest.mark.process, pytest.mark.timeout(280)]

TRAININGS = ("twice", "dataset", "own")
PROGRAM = Path(__file__).with_name("keras_program.py")


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    """Of all tests with TensorFlow: none of them has to end it."""
    forks.server("tensorflow keras", overlay.python_path())


def leg(what: str, stop: int, place: str, folder: Path, *more: str) -> Any:
    """What a process reports; None if it is ended in the middle."""
    printed = overlay.run(PROGRAM, what, str(stop), place, *more, cwd=folder, TPU_MAGICS_RUNS=str(folder / "runs"))
    lines = printed.splitlines()
    return overlay.last_json(printed) if lines and lines[-1].startswith("{") else None


@pytest.mark.parametrize("what", TRAININGS)
def test_it_ends_as_the_unbroken_run(what: str, tmp_path: Path) -> None:
    whole = leg(what, 0, "", tmp_path)
    place = str(tmp_path / "place")
    assert leg(what, 19, place, tmp_path) is None
    assert leg(what, 10, place, tmp_path) is None
    found = leg(what, 0, place, tmp_path)
    assert found["resumed"] and found["resumed"][0] >= 7
    assert (found["value"], found["weights"]) == (whole["value"], whole["weights"])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", TRAININGS)
def test_many_kills(what: str, tmp_path: Path) -> None:
    numbers = random.Random(100)
    whole = leg(what, 0, "", tmp_path)
    kills, place = 0, 0
    while kills < 15:
        found, place = None, place + 1
        while found is None:
            stop, every = numbers.randint(1, 15), str(numbers.choice((1, 2, 3, 7)))
            how = numbers.choice(("exit", "SIGKILL"))
            found = leg(what, stop, str(tmp_path / f"place-{place}"), tmp_path, every, how)
            kills += found is None
        assert (found["value"], found["weights"]) == (whole["value"], whole["weights"])
    print(f"{what}: {kills} kills")
