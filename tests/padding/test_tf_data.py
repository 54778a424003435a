"""The lines for tf.data do what the table says (with tf_data_program.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import overlay

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("tf_data_program.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return overlay.report(PROGRAM)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["longest in batch", "multiple of 32", "max length", "best 2 buckets"])
def test_each_line_makes_full_batches_of_the_lengths_that_the_table_has(found: dict[str, Any], name: str) -> None:
    way = found[name]
    assert {rows for rows, _ in way["shapes"]} == {4} and way["tokens"] > 1000
    if name != "longest in batch":  # that depends on the shuffle
        assert {length for _, length in way["shapes"]} <= set(way["lengths"])


def test_without_padding_each_sample_is_a_batch(found: dict[str, Any]) -> None:
    way = found["no padding"]
    assert {rows for rows, _ in way["shapes"]} == {1} and {n for _, n in way["shapes"]} == set(way["lengths"])
