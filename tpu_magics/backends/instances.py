"""The objects of a kind that exist in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

MANY = 64  # classes; nn.Module has hundreds (0.5 s in get_referrers), torch.Tensor about 20


def instances(kind: type) -> list[Any]:
    """Those of this class, written in Python, and of classes derived from it that the garbage collector lists; not what
    was frozen before a fork (launch/process.py). No code of theirs runs (isinstance() would run that of proxies).

    An object refers to its class, so it is found without a list of all objects: while one exists, CPython 3.11 raises
    SystemError in a thread that ends a tuple from a generator (`_PyTuple_Resize`), and torch warns of a tensor freed.
    With many classes that would be slow, and the list is made.
    """
    classes = list(_with_derived(kind))
    kinds = set(map(id, classes))
    living = gc.get_referrers(*classes) if len(classes) <= MANY else gc.get_objects()
    return [one for one in living if id(type(one)) in kinds]


def _with_derived(kind: type) -> Iterator[type]:
    yield kind
    derived: list[type] = type.__subclasses__(kind)
    for one in derived:
        yield from _with_derived(one)
