"""The kinds of mutable objects: their parts, how they are compared, and how they are changed in place."""

from __future__ import annotations

import contextlib
import io
import operator
import pickle
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tpu_magics.launch.state.type_rules import PLAIN, TypeRule, cached_by_type, is_library_type

ATOMS = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice}
)
Label = tuple[str, Any]
"""The position of a part: ("item", key), ("attribute", name), ("name", name) or ("", "")."""
Undo = Callable[[], None]
MISSING: Any = object()


class Kind(Protocol):
    """One kind of object. `named`: a description for an object that can never be updated, else ""."""

    named: str

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        """The objects that it contains."""

    def mark(self, value: Any) -> Any:
        """What `changed` compares with: a shallow copy or a checksum."""

    def changed(self, value: Any, mark: Any) -> bool:
        """Whether the object differs from its mark."""

    def content(self, value: Any, mark: Any) -> Any:
        """The new content, for `put`."""

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        """The parts of a content that can be left out separately."""

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:
        """The content without the pieces of these labels; None if nothing is left."""

    def put(self, value: Any, content: Any) -> Undo:
        """Change `value` in place. Returns a function that undoes the change."""


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
    if type(left) not in ATOMS or left != right:
        return False
    return type(left) is not float or left != 0 or str(left) == str(right)


def all_same(left: Any, right: Any) -> bool:
    """`same` for each pair of parts of two sequences."""
    return len(left) == len(right) and (all(map(operator.is_, left, right)) or all(map(same, left, right)))


def only_atoms(values: Any) -> bool:
    """Whether all `values` are of ATOMS."""
    return ATOMS.issuperset(map(type, values))


class BaseKind:
    named = ""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:  # noqa: ARG002
        return iter(())

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:  # noqa: ARG002
        return []  # it is pickled as a whole

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        return None


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
    return OrderedDict if isinstance(value, OrderedDict) else dict


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
            fields.new = {name: item for name, item in fields.new.items() if not isinstance(item, _CODE)}
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
        if isinstance(item, types.MemberDescriptorType)
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
        return ((("attribute", name), item) for name, item in _class_attributes(value, _not_a_descriptor).items())

    def mark(self, value: Any) -> Any:
        return _class_attributes(value, _is_plain_attribute)

    def _all(self, value: Any) -> dict[str, Any]:
        return _class_attributes(value, _is_plain_attribute)

    def _set(self, value: Any, name: str, item: Any) -> None:
        type.__setattr__(value, name, item)

    def _delete(self, value: Any, name: str) -> None:
        type.__delattr__(value, name)


def _not_a_descriptor(item: Any) -> bool:
    return not isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType))


def _is_plain_attribute(item: Any) -> bool:
    code = (*_CODE, classmethod, staticmethod, property, type)
    return _not_a_descriptor(item) and not isinstance(item, code) and not hasattr(type(item), "__get__")


def _class_attributes(kind: type, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    return {
        name: _underlying_function(item)
        for name, item in vars(kind).items()
        if not name.startswith(("__", "_abc_")) and wanted(item)
    }


def _underlying_function(item: Any) -> Any:
    """The function in a descriptor."""
    if isinstance(item, (classmethod, staticmethod)):
        return item.__func__
    return item.fget if isinstance(item, property) else item


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


class StateKind(BaseKind):
    """Objects whose whole state can be read and set: random generators, StringIO, BytesIO."""

    def __init__(self, get: Callable[[Any], Any], put: Callable[[Any, Any], None]) -> None:
        self._get = get
        self._put = put

    def mark(self, value: Any) -> Any:
        return self._get(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return not equal(self._get(value), mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return self._get(value)

    def put(self, value: Any, content: Any) -> Undo:
        old = self._get(value)
        self._put(value, content)
        return lambda: self._put(value, old)


def equal(left: Any, right: Any) -> bool:
    """Whether two states are equal: numbers, texts, arrays, and dicts and sequences of them."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and (left == right if only_atoms(left) else all(map(equal, left, right)))
    result = left == right
    return bool(result.all()) if hasattr(result, "all") else bool(result)


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


def flush(value: Any) -> None:
    """Flush a file: a fork would have a copy of its buffer."""
    if isinstance(value, io.IOBase):
        with contextlib.suppress(OSError, ValueError):
            value.flush()


def _iterator_position(value: Any) -> Any:
    return operator.length_hint(value, -1), repr(value) if type(value).__name__ == "count" else ""


LIST = SequenceKind(list, lambda value, items: list.__setitem__(value, slice(None), items))
DEQUE = SequenceKind(deque, _fill_deque)
SET, DICT, BYTES = SetKind(set, _fill_set), DictKind(), BytesKind()
BINDING, CELL, CLASS = BindingKind(), CellKind(), ClassKind()
FILE = ReportedKind("an open file", lambda value: value.closed or value.tell())
GENERATOR = ReportedKind("a generator", lambda value: value.gi_frame and value.gi_frame.f_lasti)
ITERATOR = ReportedKind("an iterator", _iterator_position)
_CONTAINERS: tuple[tuple[type, Kind], ...] = ((list, LIST), (dict, DICT), (set, SET), (deque, DEQUE))
_ITERATORS = tuple(map(type, map(iter, ([], (), range(0), {}, {}.values(), {}.items(), "", "é", set()))))


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
    if kind is types.GeneratorType:
        return GENERATOR
    if kind in _ITERATORS or (kind.__module__ == "itertools" and kind.__name__ == "count"):
        return ITERATOR
    random = sys.modules.get("random")
    if random is not None and issubclass(kind, random.Random):
        return StateKind(lambda value: value.getstate(), lambda value, state: value.setstate(state))
    return None
