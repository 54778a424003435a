"""The kinds of mutable objects: their parts, how they are compared, and how they are changed in place."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import gc
import io
import operator
import pickle
import queue
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.object_kinds import BaseKind, StateKind
from tpu_magics.backends.protocols import Kind, Label, Undo
from tpu_magics.launch.state import fingerprints
from tpu_magics.launch.state.type_rules import PLAIN, TypeRule, rule_of
from tpu_magics.runs.origin import cached_by_type, is_library_type, is_user_function

ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice}
)
MISSING: Any = object()


@dataclass
class Fields:
    """New values by name, and the removed names."""

    new: dict[str, Any]
    gone: list[str]

    def without(self, names: set[Any]) -> Fields | None:
        """Without these names; None if nothing is left."""
        remaining = Fields({name: item for name, item in self.new.items() if name not in names}, self.gone)
        return remaining if remaining.new or remaining.gone else None


def same(left: Any, right: Any) -> bool:
    """Whether two parts are the same object, or equal and immutable."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if type(left) is tuple:
        return len(left) == len(right) and all(map(same, left, right))
    if not (type(left) in ATOMS or rule_of(type(left)).constant) or left != right:
        return False
    return type(left) is not float or left != 0 or str(left) == str(right)


def all_same(left: Any, right: Any) -> bool:
    """`same` for each pair of parts of two sequences."""
    return len(left) == len(right) and (all(map(operator.is_, left, right)) or all(map(same, left, right)))


def only_atoms(values: Any) -> bool:
    """Whether all `values` are of ATOMS."""
    return ATOMS.issuperset(map(type, values))


class _FieldsKind(BaseKind):
    """Its content is a `Fields`."""

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        return [(("attribute", name), item) for name, item in content.new.items()]

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        return content.without(labels)


class SequenceKind(BaseKind):
    """A list, set or deque. `base`: the built-in type, whose methods are called in place of a subclass's own; `fill`:
    replaces the items."""

    def __init__(self, base: Any, fill: Callable[[Any, Any], None]) -> None:
        self._base = base
        self._fill = fill

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        if only_atoms(self._base.__iter__(value)):
            return iter(())
        return ((("item", i), item) for i, item in enumerate(self.mark(value)))

    def mark(self, value: Any) -> Any:
        return tuple(self._base.__iter__(value))

    def changed(self, value: Any, mark: Any) -> bool:
        return not all_same(self.mark(value), mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return list(self._base.__iter__(value))

    def put(self, value: Any, content: Any) -> Undo:
        old = self.mark(value)
        self._fill(value, content)
        return lambda: self._fill(value, old)


def _fill_set(value: Any, items: Any) -> None:
    set.clear(value)
    set.update(value, items)


def _fill_deque(value: Any, items: Any) -> None:
    deque.clear(value)
    deque.extend(value, items)


class SetKind(SequenceKind):
    """A set, whose items may have another order."""

    def changed(self, value: Any, mark: Any) -> bool:
        now = self.mark(value)
        return len(now) != len(mark) or (not all_same(now, mark) and set(map(id, now)) != set(map(id, mark)))


class DictKind(BaseKind):
    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        pairs = list(dict.items(value))
        if only_atoms(dict.values(value)) and only_atoms(dict.keys(value)):
            return
        for key, item in pairs:
            yield ("key", key), key
            yield ("item", key), item

    def mark(self, value: Any) -> Any:
        pairs = _pairs(value)
        return tuple(key for key, _ in pairs), tuple(item for _, item in pairs)

    def changed(self, value: Any, mark: Any) -> bool:
        keys, items = self.mark(value)
        return not (all_same(keys, mark[0]) and all_same(items, mark[1]))

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return _pairs(value)

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        return [(("item", key), (key, item)) for key, item in content]

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:
        """Keys that existed before keep their old values."""
        old = dict(zip(*mark, strict=True))
        pairs = [(key, old.get(key, MISSING) if key in labels else item) for key, item in content]
        return [(key, item) for key, item in pairs if item is not MISSING]

    def put(self, value: Any, content: Any) -> Undo:
        old = _pairs(value)

        def fill(pairs: Any) -> None:
            kind = _dict_type(value)
            kind.clear(value)
            for key, item in pairs:
                kind.__setitem__(value, key, item)

        fill(content)
        return lambda: fill(old)


def _dict_type(value: Any) -> Any:
    return OrderedDict if issubclass(type(value), OrderedDict) else dict


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(_dict_type(value).items(value))


class BytesKind(BaseKind):
    """bytearray and array.array. The mark is a copy, since they are small in practice."""

    def mark(self, value: Any) -> Any:
        return bytes(memoryview(value).cast("B")) if len(value) else b""

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.mark(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return value[:]

    def put(self, value: Any, content: Any) -> Undo:
        old = value[:]
        value[:] = content

        def back() -> None:
            value[:] = old

        return back


class _AttributesKind(_FieldsKind):
    """Something with named attributes, which are compared one by one."""

    def mark(self, value: Any) -> Any:
        raise NotImplementedError

    def changed(self, value: Any, mark: Any) -> bool:
        fields = self.content(value, mark)
        return bool(fields.new or fields.gone)

    def content(self, value: Any, mark: Any) -> Fields:
        now = self.mark(value)
        new = {name: item for name, item in now.items() if not same(item, mark.get(name, MISSING))}
        return Fields(new, [name for name in mark if name not in now])

    def put(self, value: Any, content: Fields) -> Undo:
        old = self._all(value)
        for name in content.gone:
            self._delete(value, name)
        for name, item in content.new.items():
            self._set(value, name, item)

        def back() -> None:
            for name in content.new:
                if name not in old:
                    self._delete(value, name)
            for name in (*content.gone, *content.new):
                if name in old:
                    self._set(value, name, old[name])

        return back

    def _all(self, value: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _set(self, value: Any, name: str, item: Any) -> None:
        raise NotImplementedError

    def _delete(self, value: Any, name: str) -> None:
        raise NotImplementedError


class ObjectKind(_AttributesKind):
    """Objects with attributes in `__dict__` and `__slots__`. `of_library`: the class is not the user's."""

    def __init__(self, rule: TypeRule = PLAIN, of_library: bool = False) -> None:
        self.rule = rule
        self.of_library = of_library

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("attribute", name), item) for name, item in self.mark(value).items())

    def mark(self, value: Any) -> Any:
        found = attributes(value)
        return {name: item for name, item in found.items() if self.rule.has(name)}

    def content(self, value: Any, mark: Any) -> Fields:
        fields = super().content(value, mark)
        if self.of_library:  # methods that a library replaced on its object are not data
            fields.new = {name: item for name, item in fields.new.items() if not issubclass(type(item), _CODE)}
        return fields

    def _all(self, value: Any) -> dict[str, Any]:
        return attributes(value)

    def _set(self, value: Any, name: str, item: Any) -> None:
        slot = _slots(type(value)).get(name)
        if slot is not None:
            slot.__set__(value, item)
        else:
            _own_dict(value)[name] = item  # type: ignore[index]

    def _delete(self, value: Any, name: str) -> None:
        slot = _slots(type(value)).get(name)
        if slot is not None:
            slot.__delete__(value)
        else:
            (_own_dict(value) or {}).pop(name, None)


_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an instance, without running its own code."""
    own = _own_dict(value)
    slots = _slots(type(value))
    if not slots:
        return dict(own or {})
    values = {name: slot.__get__(value) for name, slot in slots.items() if _is_set(slot, value)}
    return {**values, **(own or {})}


def _own_dict(value: Any) -> dict[str, Any] | None:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None


@cached_by_type
def _slots(kind: type) -> dict[str, Any]:
    return {
        name: item
        for base in reversed(kind.__mro__)
        if "__slots__" in vars(base)
        for name, item in vars(base).items()
        if issubclass(type(item), types.MemberDescriptorType)
    }


def _is_set(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


class ModuleKind(ObjectKind):
    """An object with methods that get and set an extra state, as a module with `get_extra_state`. `get`, `put`: the
    names of the two methods."""

    def __init__(self, rule: TypeRule, of_library: bool, get: str, put: str) -> None:
        super().__init__(rule, of_library)
        self._get = get
        self._put = put

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("attribute", name), item) for name, item in super().mark(value).items())

    def mark(self, value: Any) -> Any:
        return {**super().mark(value), EXTRA: self._state(value)}

    def content(self, value: Any, mark: Any) -> Fields:
        fields = super().content(value, mark)
        if fields.new.pop(EXTRA, None) is not None:
            fields.new[EXTRA] = getattr(value, self._get)()
        return fields

    def put(self, value: Any, content: Fields) -> Undo:
        old = getattr(value, self._get)() if EXTRA in content.new else None
        own = {name: item for name, item in content.new.items() if name != EXTRA}
        back = super().put(value, Fields(own, content.gone))
        if EXTRA not in content.new:
            return back
        getattr(value, self._put)(content.new[EXTRA])

        def both() -> None:
            getattr(value, self._put)(old)
            back()

        return both

    def _state(self, value: Any) -> Any:
        try:
            return pickle.dumps(getattr(value, self._get)())
        except Exception:  # without a pickle there is no comparison
            return b""


EXTRA = "get_extra_state()"


class SubclassKind(BaseKind):
    """An instance of a subclass of list, dict, ..., which has items and attributes."""

    def __init__(self, items: Kind, fields: ObjectKind) -> None:
        self.items = items
        self.fields = fields

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        yield from self.items.parts(value)
        yield from self.fields.parts(value)

    def mark(self, value: Any) -> Any:
        return self.items.mark(value), self.fields.mark(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return self.items.changed(value, mark[0]) or self.fields.changed(value, mark[1])

    def content(self, value: Any, mark: Any) -> Any:
        return self.items.content(value, mark[0]), self.fields.content(value, mark[1])

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        return [*self.items.pieces(content[0]), *self.fields.pieces(content[1])]

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:
        items = self.items.without(content[0], mark[0], labels)
        return None if items is None else (items, content[1].without(labels) or Fields({}, []))

    def put(self, value: Any, content: Any) -> Undo:
        first = self.items.put(value, content[0])
        second = self.fields.put(value, content[1])

        def back() -> None:
            second()
            first()

        return back


class ClassKind(_AttributesKind):
    """The attributes of a class that the user defined."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        found = sorted(_class_attributes(value, _not_a_descriptor).items())  # cloudpickle's copy has them sorted
        return ((("attribute", name), one) for name, item in found for one in _functions_in(item))

    def mark(self, value: Any) -> Any:
        return _class_attributes(value, _is_comparable)

    def _all(self, value: Any) -> dict[str, Any]:
        return _class_attributes(value, _is_comparable)

    def _set(self, value: Any, name: str, item: Any) -> None:
        type.__setattr__(value, name, item)

    def _delete(self, value: Any, name: str) -> None:
        type.__delattr__(value, name)


def _not_a_descriptor(item: Any) -> bool:
    return not issubclass(type(item), (types.MemberDescriptorType, types.GetSetDescriptorType))


def _is_comparable(item: Any) -> bool:
    """Plain attributes, and methods and classes of the user's code."""
    code = _underlying_function(item)
    if issubclass(type(code), types.FunctionType):
        return is_user_function(code)
    if issubclass(type(code), type):
        return not is_library_type(code)
    return _not_a_descriptor(item) and not issubclass(type(item), _CODE) and not hasattr(type(item), "__get__")


def _class_attributes(kind: type, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """A class's attributes; of names that Python gives it itself, only methods (`__len__`)."""
    return {
        name: item
        for name, item in vars(kind).items()
        if not name.startswith("_abc_")
        and (not name.startswith("__") or issubclass(type(_underlying_function(item)), types.FunctionType))
        and wanted(item)
    }


def _underlying_function(item: Any) -> Any:
    """The function in a descriptor."""
    return _functions_in(item)[0]


def _functions_in(item: Any) -> tuple[Any, ...]:
    if issubclass(type(item), (classmethod, staticmethod)):
        return (item.__func__,)
    if issubclass(type(item), functools.cached_property):
        return (item.func,)
    return (item.fget, item.fset, item.fdel) if issubclass(type(item), property) else (item,)


class NamespaceEntry:
    """A name in the namespace `space` that the user's code can assign."""

    def __init__(self, space: dict[str, Any], name: str) -> None:
        self.space = space
        self.name = name


class _VariableKind(_FieldsKind):
    """Something with one value, MISSING if it has none."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        item = self.mark(value)
        return iter(()) if item is MISSING else iter(((("", ""), item),))

    def mark(self, value: Any) -> Any:
        raise NotImplementedError

    def changed(self, value: Any, mark: Any) -> bool:
        return not same(self.mark(value), mark)

    def content(self, value: Any, mark: Any) -> Fields:  # noqa: ARG002
        item, name = self.mark(value), self._name(value)
        return Fields({}, [name]) if item is MISSING else Fields({name: item}, [])

    def put(self, value: Any, content: Fields) -> Undo:
        old = self.mark(value)
        self._assign(value, content.new.get(self._name(value), MISSING))
        return lambda: self._assign(value, old)

    def _name(self, value: Any) -> str:  # noqa: ARG002
        return ""

    def _assign(self, value: Any, item: Any) -> None:
        raise NotImplementedError


class BindingKind(_VariableKind):
    def mark(self, value: Any) -> Any:
        return value.space.get(value.name, MISSING)

    def _name(self, value: Any) -> str:
        return str(value.name)

    def _assign(self, value: Any, item: Any) -> None:
        if item is MISSING:
            value.space.pop(value.name, None)
        else:
            value.space[value.name] = item


class CellKind(_VariableKind):
    """A cell of a closure."""

    def mark(self, value: Any) -> Any:
        try:
            return value.cell_contents
        except ValueError:
            return MISSING

    def _assign(self, value: Any, item: Any) -> None:
        if item is MISSING:
            del value.cell_contents
        else:
            value.cell_contents = item


class ReportedKind(BaseKind):
    """Objects that cannot be updated in the notebook and are named if they changed. `position`: a value that differs
    after a change."""

    def __init__(self, named: str, position: Callable[[Any], Any]) -> None:
        self.named = named
        self._position = position

    def mark(self, value: Any) -> Any:
        try:
            return self._position(value)
        except Exception:
            return None

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.mark(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:
        raise NotImplementedError

    def put(self, value: Any, content: Any) -> Undo:
        raise NotImplementedError


class CacheKind(ReportedKind):
    """What functools.lru_cache makes of a function."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        yield ("", ""), value.__wrapped__


def has_cached(value: Any) -> bool:
    """Whether it is a function of functools.lru_cache that has results."""
    return type(value) is type(functools.lru_cache(len)) and value.cache_info().currsize > 0


class ContextKind(_VariableKind):
    """A contextvars.ContextVar."""

    def mark(self, value: Any) -> Any:
        return value.get(MISSING)

    def _assign(self, value: Any, item: Any) -> None:
        value.set(item)  # there is no way to have none again


class LocalKind(ObjectKind):
    """A threading.local, in the thread that runs the notebook's code."""

    def mark(self, value: Any) -> Any:
        return dict(vars(value))

    def _all(self, value: Any) -> dict[str, Any]:
        return dict(vars(value))

    def _set(self, value: Any, name: str, item: Any) -> None:
        vars(value)[name] = item

    def _delete(self, value: Any, name: str) -> None:
        vars(value).pop(name, None)

    def enter(self, value: Any, mark: Any) -> None:
        """In another thread that goes on with the notebook's work."""
        vars(value).update(mark)


class FunctionKind(ObjectKind):
    """A function of the user: its attributes and the defaults of its arguments."""

    def mark(self, value: Any) -> Any:
        return self._all(value)

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("attribute", name), item) for name, item in vars(value).items())

    def _all(self, value: Any) -> dict[str, Any]:
        return {**vars(value), **{name: getattr(value, name) for name in _OF_FUNCTION}}

    def _set(self, value: Any, name: str, item: Any) -> None:
        setattr(value, name, item)

    def _delete(self, value: Any, name: str) -> None:
        delattr(value, name)


_OF_FUNCTION = ("__defaults__", "__kwdefaults__")


class ModuleNamesKind(_AttributesKind):
    """The names of a module that the user wrote."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("attribute", name), item) for name, item in _names_of_module(value).items())

    def mark(self, value: Any) -> Any:
        return {
            name: item for name, item in _names_of_module(value).items() if not issubclass(type(item), (*_CODE, type))
        }

    def _all(self, value: Any) -> dict[str, Any]:
        return dict(vars(value))

    def _set(self, value: Any, name: str, item: Any) -> None:
        vars(value)[name] = item

    def _delete(self, value: Any, name: str) -> None:
        vars(value).pop(name, None)


def _names_of_module(module: Any) -> dict[str, Any]:
    return {
        name: item
        for name, item in vars(module).items()
        if not name.startswith("__") and not issubclass(type(item), types.ModuleType)
    }


class WeakMappingKind(BaseKind):
    """A WeakKeyDictionary or a WeakValueDictionary."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        for key, item in list(value.items()):
            yield ("key", key), key
            yield ("item", key), item

    def mark(self, value: Any) -> Any:
        return tuple((id(key), id(item)) for key, item in list(value.items()))

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.mark(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return list(value.items())

    def put(self, value: Any, content: Any) -> Undo:
        old = self.content(value, None)

        def fill(entries: Any) -> None:
            value.clear()
            value.update(entries)

        fill(content)
        return lambda: fill(old)


class WeakSetKind(WeakMappingKind):
    """A WeakSet."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("item", number), item) for number, item in enumerate(list(value)))

    def mark(self, value: Any) -> Any:
        return frozenset(map(id, list(value)))

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return list(value)


class NotUpdatableError(Exception):
    """An object that cannot be changed in place."""


class WholeKind(BaseKind):
    """An object whose state is not in attributes: compared by what its pickle contains, and set by `__setstate__`;
    where that is not possible, a change is reported."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        inner = [value.obj] if issubclass(type(value), memoryview) else fingerprints.hidden_parts(value)
        return ((("", ""), part) for part in inner)

    def mark(self, value: Any) -> Any:
        return fingerprints.fingerprint(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.mark(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        try:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            reduced = ""
        made = not isinstance(reduced, str) and reduced[0] is copyreg.__newobj__ and len(reduced[1]) == 1  # type: ignore[attr-defined]
        if not made or len(reduced) < 3 or any(reduced[3:5]) or not hasattr(value, "__setstate__"):
            raise NotUpdatableError(f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}".lstrip("_"))
        return reduced[2]

    def put(self, value: Any, content: Any) -> Undo:
        old = self.content(value, None)
        value.__setstate__(content)
        return lambda: value.__setstate__(old)


def _is_only_written(file: Any) -> bool:
    """Whether what a worker wrote is in the file, and the notebook goes on behind it: a fork shares the position. Not
    so where something is between (gzip), or what was read ahead."""
    raw = getattr(file, "buffer", file)  # of text
    raw = getattr(raw, "raw", raw)
    return type(raw) is io.FileIO and not file.readable()


class QueueKind(StateKind):
    """A queue.SimpleQueue. Its items are read without taking one out, for which a thread may wait."""

    def __init__(self) -> None:
        super().__init__(_queued, _fill_queue)

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("item", number), item) for number, item in enumerate(_queued(value)))

    def changed(self, value: Any, mark: Any) -> bool:
        return not all_same(_queued(value), mark)


def _queued(value: Any) -> tuple[Any, ...]:
    own = [part for part in gc.get_referents(value) if part is not type(value)]
    if sys.version_info >= (3, 13):
        return tuple(own)
    return tuple(own[0][len(own[0]) - value.qsize() :])  # a list, at whose beginning are those that were taken


def _fill_queue(value: Any, items: Any) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            value.get_nowait()
    for item in items:
        value.put(item)


def flush(value: Any) -> None:
    """Flush a file: a fork would have a copy of its buffer."""
    if issubclass(type(value), io.IOBase):
        with contextlib.suppress(OSError, ValueError):
            value.flush()


LIST = SequenceKind(list, lambda value, items: list.__setitem__(value, slice(None), items))
DEQUE = SequenceKind(deque, _fill_deque)
SET, DICT, BYTES = SetKind(set, _fill_set), DictKind(), BytesKind()
BINDING, CELL, CLASS, FUNCTION = BindingKind(), CellKind(), ClassKind(), FunctionKind()
FILE = ReportedKind("an open file", lambda value: value.closed or (None if _is_only_written(value) else value.tell()))
GENERATOR = ReportedKind("a generator", fingerprints.position)
ITERATOR = ReportedKind("an iterator", fingerprints.position)
CACHE = CacheKind("the cache of a function", lambda value: value.cache_info()[1::2])
CONTEXT, LOCAL, MODULE, WEAK, WHOLE = ContextKind(), LocalKind(), ModuleNamesKind(), WeakMappingKind(), WholeKind()
_CONTAINERS: tuple[tuple[type, Kind], ...] = ((list, LIST), (dict, DICT), (set, SET), (deque, DEQUE))


def container_kind(kind: type, rule: TypeRule) -> Kind | None:
    """The kind for a container type, else None."""
    for base, base_kind in _CONTAINERS:
        if issubclass(kind, base):
            plain = kind is base or kind.__module__ in ("collections", "builtins")
            return base_kind if plain else SubclassKind(base_kind, ObjectKind(rule, is_library_type(kind)))
    return BYTES if issubclass(kind, bytearray) or _is_array(kind) else None


def _is_array(kind: type) -> bool:
    module = sys.modules.get("array")
    return module is not None and issubclass(kind, module.array)


def builtin_kind(kind: type) -> Kind | None:
    """The kind for other types of the standard library, else None."""
    if issubclass(kind, (io.StringIO, io.BytesIO)):
        return StateKind(
            lambda value: value.__getstate__()[:3], lambda value, state: value.__setstate__((*state, None))
        )
    if issubclass(kind, io.IOBase):
        return FILE
    if kind in _OF_STANDARD_LIBRARY:
        return _OF_STANDARD_LIBRARY[kind]
    of_c = kind.__flags__ & _IMMUTABLE_TYPE
    if of_c and hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
        return ITERATOR
    for module, name, found in _BY_NAME:
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type) and issubclass(kind, base):
            return found
    return None


_OF_STANDARD_LIBRARY: Mapping[type, Kind] = {
    types.GeneratorType: GENERATOR,
    memoryview: WHOLE,
    type(functools.lru_cache(len)): CACHE,
    queue.SimpleQueue: QueueKind(),
    weakref.WeakKeyDictionary: WEAK,
    weakref.WeakValueDictionary: WEAK,
    weakref.WeakSet: WeakSetKind(),
}
_RANDOM = StateKind(lambda value: value.getstate(), lambda value, state: value.setstate(state))
_BY_NAME: tuple[tuple[str, str, Kind], ...] = (
    ("random", "Random", _RANDOM),
    ("contextvars", "ContextVar", CONTEXT),
    ("threading", "local", LOCAL),
)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: of C, also where it is a heap type (itertools since 3.12)
_NATIVE_PARTS = (types.MethodDescriptorType, types.GetSetDescriptorType)


@cached_by_type
def is_native(kind: type) -> bool:
    """Whether its instances have state in C, besides attributes."""
    return any(
        not base.__flags__ & _HEAP_TYPE
        or any(isinstance(item, _NATIVE_PARTS) for name, item in vars(base).items() if not name.startswith("__"))
        for base in kind.__mro__[:-1]
    )


@cached_by_type
def is_value(kind: type) -> bool:
    """Whether its instances are compared by what they contain and hashable, and so do not change."""
    own: Any = kind.__hash__
    return own is not None and own is not object.__hash__ and not is_exception(kind)


def has_identity_hash(value: Any) -> bool:
    """Whether its class has a hash of its own that is that of the object, so that it may change."""
    own: Any = type(value).__hash__
    if issubclass(type(value), (type, tuple, frozenset)) or own is object.__hash__:
        return False
    try:
        return hash(value) in (id(value), object.__hash__(value))
    except Exception:  # from an object's own code
        return False


def is_exception(kind: type) -> bool:
    return issubclass(kind, BaseException)
