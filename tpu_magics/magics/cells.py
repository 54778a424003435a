"""Which cells make up the notebook now.

What lives here: of the cells that have run, those that were run again in another form are left out. What does not:
where the texts come from (notebook.py), and what is found in them (check/).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache

from tpu_magics.check.cells import Cell, cell_of

ALIKE = 0.5  # of the lines of both: a cell that was changed and run again


def newest(texts: Mapping[int, str], ids: Mapping[str, str]) -> list[Cell]:
    """The cells `In [n]`, without those that a later run has replaced.

    A front end that sends ids tells which these are; elsewhere it is a cell with the same text, or one that defines
    the same name or begins with the same line and shares half of its lines. What never ran is left out, but for the
    newest, which runs now: cells that do not parse, and those below `%%tpu_check`.
    """
    kept: list[int] = []
    for number in sorted(texts, reverse=True):
        if kept and not _ran(texts[number]):
            continue
        if not any(_replaced(number, later, texts, ids) for later in kept):
            kept.append(number)
    return [_cell(texts[number], f"In [{number}]") for number in reversed(kept)]


def _ran(text: str) -> bool:
    cell = _cell(text, "In [0]")
    return cell.tree is not None and cell.magic != "tpu_check"


def _replaced(number: int, later: int, texts: Mapping[int, str], ids: Mapping[str, str]) -> bool:
    own, other = ids.get(f"In [{number}]"), ids.get(f"In [{later}]")
    if own and other:
        return own == other
    one, two = _shape(texts[number]), _shape(texts[later])
    if one[0] == two[0]:
        return True
    same_start = bool(one[1]) and one[1] == two[1]
    if not same_start and not one[2] & two[2]:
        return False
    shared = len(one[0] & two[0])
    return shared >= ALIKE * max(len(one[0]), len(two[0]))


@lru_cache(maxsize=2_000)
def _shape(text: str) -> tuple[frozenset[str], str, frozenset[str]]:
    """Its lines, the first of them, and the names that it defines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tree = _cell(text, "In [0]").tree
    names = frozenset(_defined(tree)) if tree is not None else frozenset()
    return frozenset(lines), lines[0] if lines else "", names


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


@lru_cache(maxsize=2_000)
def _cell(text: str, path: str) -> Cell:
    return cell_of(text, path)
