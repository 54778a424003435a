"""The objects of a kind that exist in this process.

While a list of all objects exists, CPython 3.11 raises SystemError in a thread that ends a tuple from a generator
(`_PyTuple_Resize`), and torch warns of a tensor that is freed. The GIL goes to another thread between the instructions
of Python's, so here a list of all lives and dies within one, list(): what that calls is written in C.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, zip_longest
from operator import itemgetter
from typing import Any

_IDENTITY = object.__hash__  # as id(), which calls audit hooks; a metaclass may have another hash
Marks = Callable[[Iterator[Any]], Iterator[Any]]  # for each object whether it is wanted; what it gives calls only C


def instances(kind: type, marks: Marks | None = None) -> list[Any]:
    """Objects of this class, written in Python, and of classes derived from it that the garbage collector lists; not
    what was frozen before a fork (launch/process.py). No code of theirs runs (isinstance() would run that of proxies).
    `marks`: only those that it marks."""
    kinds = set(map(_IDENTITY, _with_derived(kind)))
    found = _marked(gc.get_objects, lambda each: map(kinds.__contains__, map(_IDENTITY, map(type, each))))
    collects = gc.isenabled()
    gc.disable()  # finalizers are written in Python
    try:
        return list(found if marks is None else _marked(partial(list, found), marks))
    finally:
        if collects:
            gc.enable()


def _marked(make: Callable[[], list[Any]], marks: Marks) -> Iterator[Any]:
    """Items of a list that `marks` marks. The list is made for the first one; after the last, nothing has it: it may
    have what holds it, and would stay until the next collection."""
    held: list[list[Any]] = []
    made: Iterator[Any] = filter(None, map(held.append, islice(iter(make, None), 1)))
    each = chain(made, chain.from_iterable(held), iter(held.clear, None))
    pairs = zip_longest(each, marks(chain.from_iterable(held)))  # it goes on until both have ended
    return map(itemgetter(0), filter(itemgetter(1), pairs))


def _with_derived(kind: type) -> Iterator[type]:
    yield kind
    derived: list[type] = type.__subclasses__(kind)
    for one in derived:
        yield from _with_derived(one)
