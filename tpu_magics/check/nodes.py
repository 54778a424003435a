"""Helpers for syntax trees."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Trees are many small objects that live until the end; collecting garbage among them takes half the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, as `ast.walk` gives them in another order, in half the time."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                waiting.extend(one for one in value if isinstance(one, ast.AST))
            elif isinstance(value, ast.AST):
                waiting.append(value)
