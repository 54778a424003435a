"""The objects of a kind that exist in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import compress
from typing import Any


def instances(kind: type) -> list[Any]:
    """Those of this class and of classes derived from it that the garbage collector lists; not what was frozen before a
    fork (launch/process.py).

    The list of all objects exists for a moment only, and no code of others runs while it does (isinstance() would run
    that of proxies): CPython raises SystemError in a thread that is filling a tuple if something else refers to the
    tuple when it is done, and torch warns of a tensor that it frees while something refers to it.
    """
    kinds = {id(one) for one in _with_derived(kind)}
    living = gc.get_objects()
    return list(compress(living, map(kinds.__contains__, map(id, map(type, living)))))


def _with_derived(kind: type) -> Iterator[type]:
    yield kind
    derived: list[type] = type.__subclasses__(kind)
    for one in derived:
        yield from _with_derived(one)
