"""Patches of JSON: the vectors that the extension's side has to meet too, and any two values."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.panel.patches import patched
from tests.panel.recorded import calls
from tpu_magics.panel.patch import diff

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "patch_vectors.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_vectors(vector: dict[str, Any]) -> None:
    old, new = copy.deepcopy(vector["old"]), vector["new"]
    patch = diff(old, new)
    assert patch == vector["patch"]
    assert old == vector["old"]
    if patch is not None:
        assert patched(old, json.loads(json.dumps(patch))) == new


# A field of a page keeps its type, so there are no booleans beside numbers here.
leaves = some.none() | some.integers(0, 3) | some.text("ab", max_size=2)
keyed = some.fixed_dictionaries({"key": some.sampled_from("abcd"), "n": some.integers(0, 2)})
values = some.recursive(
    leaves | keyed,
    lambda inner: some.lists(inner, max_size=5) | some.dictionaries(some.sampled_from("xyz"), inner, max_size=3),
    max_leaves=20,
)


@given(values, values)
def test_a_patch_makes_the_new_value_of_the_old_one(old: Any, new: Any) -> None:
    patch = diff(old, new)
    assert new == (old if patch is None else patched(old, json.loads(json.dumps(patch))))
    assert (patch is None) == (old == new)


@given(some.lists(keyed, max_size=8), some.lists(keyed, max_size=8))
def test_a_patch_of_items_with_keys(old: Any, new: Any) -> None:
    patch = diff(old, new)
    assert new == (old if patch is None else patched(old, json.loads(json.dumps(patch))))


@given(some.integers(0, 6), some.integers(1, 8), some.integers(1, 8))
def test_a_window_of_the_newest_sends_what_is_new(moved: int, before: int, after: int) -> None:
    old = [{"key": str(n), "text": "a" * 50} for n in range(before, 0, -1)]
    new = [{"key": str(n), "text": "a" * 50} for n in range(before + moved, 0, -1)][:after]
    patch = diff(old, new)
    assert new == (old if patch is None else patched(old, patch))
    if moved < after:  # some are in both
        assert patch is None or len(patch["l"][2]) == moved


def test_what_has_not_changed_is_not_compared_item_by_item() -> None:
    class Counted(list):  # type: ignore[type-arg]
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return list.__eq__(self, other)

        __hash__ = None  # type: ignore[assignment]

    points = Counted([[1, 0.5]])
    assert diff({"points": points, "text": "a"}, {"points": points, "text": "b"}) == {"o": {"text": {"=": "b"}}}
    assert Counted.compared == 0


def test_the_work_is_linear() -> None:
    def work(count: int) -> int:
        old = {"a": [{"key": str(n), "cells": [n, n]} for n in range(count)]}
        new = {"a": [{"key": str(n), "cells": [n, n + 1]} for n in range(-1, count)]}
        assert diff(old, new) is not None
        return calls(lambda: diff(old, new))

    assert work(2_000) < 11 * work(200)
