"""State that a failed run restores: all optimizers, nested and grown models, modules, metrics, generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import overlay

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("snapshot_program.py")


def test_each_optimizer_is_as_it_was_to_the_byte_and_trains_on(found: dict[str, Any]) -> None:
    as_they_were(found["optimizers"], 12)


@pytest.mark.long
def test_all_of_keras_optimizers_are(tmp_path: Path) -> None:
    as_they_were(overlay.report(PROGRAM, tmp_path, "all")["optimizers"], 32)


def as_they_were(seen: dict[str, Any], number: int) -> None:
    assert len(seen) == number
    assert {name: one for name, one in seen.items() if one != [True, True, True, []]} == {}


def test_nested_models_and_one_that_the_run_has_built(found: dict[str, Any]) -> None:
    seen = found["nested"]
    assert seen["same"] and seen["lost"] == []
    assert seen["shape"] == [True, False, False, 0, False]


def test_layers_that_the_run_has_added_or_taken_away(found: dict[str, Any]) -> None:
    assert found["grown"] == {"same": True, "sizes": [4, 4, 2, 2], "lost": [], "trains": True}


def test_modules_metrics_generators_and_texts(found: dict[str, Any]) -> None:
    assert found["modules"] == {"same": True, "lost": [], "again": [8, 2]}


def test_a_disk_that_is_full_leaves_nothing_behind(found: dict[str, Any]) -> None:
    assert (found["broken"]["raised"], found["broken"]["left"]) == ("full", [])


def test_what_cannot_be_put_back_is_told_and_the_rest_is_put_back(found: dict[str, Any]) -> None:
    assert found["broken"]["lost"] == ["first:0 (ValueError: gone)."] and found["broken"]["second"] == 3.0
