"""What a module consists of, where a function changed that: a new head, adapters, pruning, parametrizations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpu_magics.backends.torch import recreate
from tpu_magics.backends.torch.modules import own_slots

Undo = Callable[[], None]
_TABLES = ("_modules", "_parameters", "_buffers")
_REST = "_non_persistent_buffers_set"


def tables(module: Any) -> Any:
    """Its class, the modules and tensors directly in it by name, and which buffers are not saved; None for a scripted
    module, whose tables are not dicts."""
    found = [vars(module).get(name) for name in _TABLES]
    if not all(isinstance(table, dict) for table in found):
        return None
    return type(module), [dict(table) for table in found], set(vars(module)[_REST])


def changed_tables(module: Any, before: Any) -> Any:
    """What it consists of now, to be pickled: how to get its class (None: its own), its tables, and which buffers are
    not saved. None if nothing was added, removed or exchanged."""
    now = tables(module)
    if now is None or before is None:
        return None
    if now[0] is before[0] and now[2] == before[2] and all(map(_same, now[1], before[1])):
        return None
    kind = None if now[0] is before[0] else recreate.class_recipe(module)
    return kind, dict(zip(_TABLES, now[1], strict=True)), now[2]


def is_reordered(module: Any, before: Any) -> bool:
    """Whether it has the same tensors in another order, as after `prune.remove`."""
    now = tables(module)
    pairs = zip(now[1][1:], before[1][1:], strict=True) if now is not None and before is not None else ()
    return any(new.keys() == old.keys() and list(new) != list(old) for new, old in pairs)


def _same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return list(left) == list(right) and all(left[name] is right[name] for name in left)


def set_tables(module: Any, content: Any) -> Undo:
    """In the notebook; returns how to undo it."""
    kind, new, rest = content
    own, before = vars(module), type(module)
    old = {name: dict(own[name]) for name in _TABLES}
    old_rest = set(own[_REST])

    def put(cls: type, found: Mapping[str, Mapping[str, Any]], names: set[str]) -> None:
        for name, table in found.items():  # the dicts stay the same objects, as libraries may hold them
            own[name].clear()
            own[name].update(table)
        own[_REST].clear()
        own[_REST].update(names)
        if type(module) is not cls:
            module.__class__ = cls

    put(before if kind is None else recreate.class_of(kind), new, rest)
    return lambda: put(before, old, old_rest)


def own_tensors(module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors directly in a module that is called `name`, by their names in its model."""
    return ((slot.name, slot.tensor) for slot in own_slots(name, module) if slot.tensor is not None)
