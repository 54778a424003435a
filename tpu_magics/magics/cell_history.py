"""The cells of the notebook as it is now: cells that were edited and run again count once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from tpu_magics.check.cells import CodeCell, cell_of

ALIKE = 0.5  # of the lines of both: a cell that was changed and run again
_COMMON = ("import ", "from ", "#", "%", "!")  # lines that many cells begin with


class Shape(NamedTuple):
    """The features by which two texts are compared: their lines, the first distinctive line, the names they define,
    and whether they can have run (they parse, and are not below `%%tpu_check`)."""

    lines: frozenset[str]
    first: str
    names: frozenset[str]
    ran: bool


def newest(texts: Mapping[int, str], ids: Mapping[str, str]) -> list[CodeCell]:
    """The cells `In [n]`, without those that a later run has replaced.

    A front end that sends ids tells which these are; elsewhere it is a cell with the same text, or one that defines
    the same name or begins with the same line and shares more than half of its lines. What never ran is left out, but
    for the newest, which runs now: cells that do not parse, and those below `%%tpu_check`.
    """
    kept: list[int] = []
    shapes = {number: _shape(text) for number, text in texts.items()}
    alike: dict[object, list[int]] = {}  # what a cell could be recognised by -> the kept ones that have it
    for number in sorted(texts, reverse=True):
        shape = shapes[number]
        if kept and not shape.ran:
            continue
        keys = _keys(number, shape, ids)
        later = {one for key in keys for one in alike.get(key, ())}
        if any(_replaced(number, one, shapes, ids) for one in later):
            continue
        kept.append(number)
        for key in keys:
            alike.setdefault(key, []).append(number)
    return [cell_of(texts[number], f"In [{number}]") for number in reversed(kept)]


def _keys(number: int, shape: Shape, ids: Mapping[str, str]) -> list[object]:
    own = ids.get(f"In [{number}]")
    named = [("name", name) for name in shape.names]
    return [("lines", shape.lines), *named, *([("first", shape.first)] if shape.first else []), *([own] if own else [])]


def _replaced(number: int, later: int, shapes: Mapping[int, Shape], ids: Mapping[str, str]) -> bool:
    own, other = ids.get(f"In [{number}]"), ids.get(f"In [{later}]")
    if own and other:
        return own == other
    one, two = shapes[number], shapes[later]
    if one.lines == two.lines:
        return True
    shared = len(one.lines & two.lines) / max(len(one.lines), len(two.lines))
    if one.names & two.names:
        return shared >= ALIKE
    return bool(one.first) and one.first == two.first and shared > ALIKE


@lru_cache(maxsize=10_000)
def _shape(text: str) -> Shape:
    cell = cell_of(text, "In [0]")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(_COMMON)), "")
    names = frozenset(_defined(cell.tree)) if cell.tree is not None else frozenset()
    return Shape(frozenset(lines), first, names, cell.tree is not None and cell.magic != "tpu_check")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
