"""What changes one JSON value into another, as JSON: `{"=": value}`, `{"o": {field: patch}}` for an object, and
`{"l": [start, removed, items, {index: patch}, length]}` for a list.

A list's `removed` items from `start` on are replaced by `items`; the list is cut to `length`, and the patches apply to
its items. What is not needed is left out at the end. `labextension/src/patch.ts` applies it, and
`tests/panel/patch_vectors.json` holds both to the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Any

Patch = dict[str, Any]
Pair = tuple[Any, Any]


def diff(old: Any, new: Any) -> Patch | None:
    """What changes `old` into `new`; None where they are equal (in Python, so that `True` is 1: a field keeps its
    type). Time is linear in the size of both, for a given depth."""
    if old is new or old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        patches = ((name, diff(old[name], value)) for name, value in new.items())
        return {"o": {name: patch for name, patch in patches if patch is not None}}
    if isinstance(old, list) and isinstance(new, list):
        return _list_patch(old, new)
    return {"=": new}


def _list_patch(old: list[Any], new: list[Any]) -> Patch:
    """Items are paired from the start and from the end as far as they are the same; what is between is replaced."""
    start = _same_items(zip(old, new, strict=False))
    most = min(len(old), len(new)) - start
    end = _same_items(islice(zip(reversed(old), reversed(new), strict=False), most))
    if not start and not end and (moved := _moved(old, new)):
        patches = _patches(enumerate(zip(old, new[moved:], strict=False), moved))
        return {"l": [0, 0, new[:moved], patches, len(new)]}
    middle = list(zip(old[start : len(old) - end], new[start : len(new) - end], strict=False))
    if len(old) == len(new) and all(map(_alike, middle)):
        start = len(new) - end
    pairs = [*enumerate(zip(old[:start], new[:start], strict=True))]
    pairs += enumerate(zip(old[len(old) - end :], new[len(new) - end :], strict=True), len(new) - end)
    patches = _patches(pairs)
    removed, items = len(old) - end - start, new[start : len(new) - end]
    return {"l": [start, removed, items, patches] if patches else [start, removed, items]}


def _patches(pairs: Iterable[tuple[int, Pair]]) -> dict[str, Patch]:
    return {str(index): patch for index, pair in pairs if (patch := diff(*pair)) is not None}


def _moved(old: list[Any], new: list[Any]) -> int:
    """How far the items have moved down in a list that has the newest items first, and only so many; 0: otherwise."""
    at = next((at for at, item in enumerate(new) if old and _same(old[0], item)), 0)
    rest = len(new) - at
    return at if 0 < rest < len(old) and _same_items(zip(old, new[at:], strict=False)) == rest else 0


def _same_items(pairs: Iterable[Pair]) -> int:
    """How many of the first pairs are of the same item: it has the same "key", or without keys, is equal."""
    return sum(1 for _pair in takewhile(lambda pair: _same(*pair), pairs))


def _same(one: Any, other: Any) -> bool:
    return one is other or (_key(one) == _key(other) if _key(one) is not None else one == other)


def _alike(pair: Pair) -> bool:
    """Whether two items at the same place are rows without keys, of which a part may be replaced."""
    one, other = pair
    return isinstance(one, dict) and isinstance(other, dict) and "key" not in one and one.keys() == other.keys()


def _key(item: Any) -> Any:
    return item.get("key") if isinstance(item, dict) else None
