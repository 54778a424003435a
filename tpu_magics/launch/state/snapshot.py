"""The snapshot: all objects that a training function can reach, numbered and marked just before the fork."""

from __future__ import annotations

import dis
import functools
import itertools
import marshal
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tpu_magics.backends.object_kinds import BaseKind
from tpu_magics.backends.protocols import Kind, Label, StateAdapter
from tpu_magics.launch.state import fingerprints, kinds, type_rules
from tpu_magics.launch.state.kinds import ATOMS, ModuleKind, NamespaceEntry, ObjectKind
from tpu_magics.launch.state.type_rules import TypeRule, rule_of
from tpu_magics.runs.origin import cached_by_type, is_library_module, is_library_type, is_user_function

MAX_OBJECTS = 100_000
UNORDERED = -1  # in the place of a checksum
LONG_CONTAINER = 20_000  # parts; a longer container of plain data is compared by one checksum


@dataclass(slots=True)
class SnapshotNode:
    """One object. `kind`: how it is compared, None if it is only numbered; `above`: the number of the object that
    contains it, -1 for a root; `label`: its position there; `quiet`, `unlimited`: as in TypeRule."""

    value: Any
    kind: Kind | None
    mark: Any
    above: int
    label: Label
    quiet: bool = False
    unlimited: bool = False


@dataclass
class StateSnapshot:
    """The objects that the work reaches. `numbers`: by id; `slots`, `modules`: numbers of the models' parts by model
    and name; `unseen`: names with more objects than the limit; `main`: the names of `__main__`; `random`: the random
    states; `mismatched`: why these, which are copies, do not tell which of the notebook's objects they are, "" if they
    do; `gradients`: which tensor each tensor with a gradient has, and its version, by number; `versions`: of the
    weights, by number; `tables`: what each module consists of, by number."""

    nodes: list[SnapshotNode] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    slots: dict[tuple[str, str], int] = field(default_factory=dict)
    modules: dict[tuple[str, str], int] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    main: Mapping[str, Any] = field(default_factory=dict)
    random: Any = None
    mismatched: str = ""
    gradients: dict[int, tuple[int, int]] = field(default_factory=dict)
    versions: dict[int, Any] = field(default_factory=dict)
    tables: dict[int, Any] = field(default_factory=dict)

    def structure(self) -> list[int]:
        """Checksums of types and positions, without values, to compare with a copy in another process; UNORDERED for a
        set of objects."""
        return [
            UNORDERED
            if issubclass(type(node.value), (set, frozenset)) and not kinds.only_atoms(node.value)
            else zlib.crc32(f"{type(node.value).__qualname__} {_label_text(node.label)} {node.above}".encode())
            for node in self.nodes
        ]

    def compare(self, structure: Sequence[int]) -> None:
        """Set `mismatched`, if these are copies of objects with this structure."""
        for number, (here, there) in enumerate(itertools.zip_longest(self.structure(), structure)):
            if here == there == UNORDERED:
                self.mismatched = f"`{self.path(number)}` is a set of objects, and has another order in each process"
            elif here != there:
                name = self.path(min(number, len(self.nodes) - 1))
                self.mismatched = f"the copy with which the worker began has other parts, first at `{name}`"
            if self.mismatched:
                return

    def knows(self, name: str, model: Any) -> bool:
        """Whether a model is the notebook's own object, not a copy."""
        number = self.modules.get((name, ""))
        return number is not None and self.nodes[number].value is model and not self.mismatched

    def is_exchanged(self, name: str, model: Any, adapter: StateAdapter) -> bool:
        """Whether a part of such a model is another object than that of the notebook, or one of its tensors stands in
        another place."""
        if not self.knows(name, model):
            return False
        now = adapter.modules({name: model})
        known = {key: number for key, number in self.modules.items() if key[0] == name}
        if now.keys() != known.keys() or any(part is not self.nodes[known[key]].value for key, part in now.items()):
            return True
        own = [(key[1], number) for key, number in known.items()]
        return any(
            adapter.is_reordered(self.nodes[number].value, self.tables[number])
            or any(
                self.numbers.get(id(tensor), self.slots.get((name, key))) != self.slots.get((name, key))
                for key, tensor in adapter.own_tensors(self.nodes[number].value, inner)
                if (name, key) in self.slots
            )
            for inner, number in own
        )

    def path(self, number: int, *labels: Label) -> str:
        """An object as Python code, such as `held['a'].b`."""
        return self.full_path(number, *labels).rpartition("\0")[2].lstrip(".")

    def full_path(self, number: int, *labels: Label) -> str:
        """All labels from the root, names after a null character."""
        path = list(reversed(labels))
        while number >= 0:
            node = self.nodes[number]
            path.append(node.label)
            number = node.above
        return "".join(map(_label_text, reversed(path)))

    def items(self) -> list[tuple[str, Any]]:
        """Every object with its path."""
        return [(self.path(number), node.value) for number, node in enumerate(self.nodes)]

    def root(self, number: int) -> str:
        """The name through which an object is reached."""
        while self.nodes[number].above >= 0 and self.nodes[number].label[0] != "name":
            number = self.nodes[number].above
        return self.path(number)


def _label_text(label: Label) -> str:
    how, key = label
    if how == "attribute":
        return f".{key}"
    if how == "name":
        return f"\0{key}"
    if how in ("item", "key"):
        return f"[{_key_text(key)}]"
    return ""


def _key_text(key: Any) -> str:
    text = repr(key) if type(key) in ATOMS else f"<{type(key).__name__}>"
    return text if len(text) <= 40 else f"{text[:40]}..."


def take_snapshot(
    roots: Iterable[tuple[str, Any]],
    adapter: StateAdapter,
    models: Mapping[str, Any],
    more_parts: Callable[[Any], Iterable[tuple[str, Any]]] = lambda _value: (),
    wrapped: Callable[[Any], Any] = lambda _value: None,
    *,
    background: bool = False,
) -> StateSnapshot:
    """Number and mark all objects below `roots`. `models`: their weights are returned separately; `more_parts`: parts
    of an object that are followed besides those of the adapter; `wrapped`: what is in a wrapper, and then is reached as
    it would be without that; None for other objects; `background`: the notebook may write to the weights meanwhile."""
    type_rules.add({name: TypeRule(**fields) for name, fields in adapter.rules.items()})
    walk = _Walk(adapter, models, more_parts, wrapped)
    for objects in (roots, models.items()):  # hoisted models are not below `roots`
        for name, value in objects:
            walk.add(value, -1, ("name", name))
        walk.run()
    walk.waiting, walk.wrappers = walk.wrappers, deque()
    walk.run()
    snapshot = walk.snapshot
    for key, module in adapter.modules(models).items():
        number = snapshot.modules[key] = snapshot.numbers[id(module)]
        snapshot.tables[number] = adapter.tables(module)
    found = adapter.versions(models, contents=background)
    snapshot.versions = {number: found[key] for key, number in snapshot.slots.items() if key in found}
    snapshot.main = dict(vars(sys.modules["__main__"]))
    snapshot.random = adapter.random_state()
    return snapshot


class _Walk:
    def __init__(
        self,
        adapter: StateAdapter,
        models: Mapping[str, Any],
        more_parts: Callable[[Any], Iterable[tuple[str, Any]]],
        wrapped: Callable[[Any], Any],
    ) -> None:
        self.snapshot = StateSnapshot()
        self.adapter = adapter
        self.more_parts = more_parts
        self.wrapped = wrapped
        self.weights = {id(value): key for key, value in adapter.named(models).items()}
        self.waiting: deque[int] = deque()
        self.wrappers: deque[int] = deque()  # after all others: what both reach has the same path without them
        self.spaces: dict[tuple[int, str], NamespaceEntry] = {}
        self.kind_of = cached_by_type(self._kind_of_type)

    def run(self) -> None:
        while self.waiting:
            number = self.waiting.popleft()
            node = self.snapshot.nodes[number]
            try:
                for label, part in self.parts(node):
                    self.add(part, number, label)
            except Exception:  # from an object's own code
                node.kind = None

    def add(self, value: Any, above: int, label: Label) -> None:
        snapshot = self.snapshot
        if type(value) in ATOMS or id(value) in snapshot.numbers:
            return
        if type(value) is types.BuiltinFunctionType and isinstance(value.__self__, _NOT_USED_BY_METHODS):
            return
        if type(value) is types.ModuleType and self.kind(value) is None:
            return  # of a library: functions that were sent to another process may know more or fewer of them
        inner = self.wrapped(value)
        if inner is not None:
            self.add(inner, above, label)
        number = len(snapshot.nodes)
        if number >= MAX_OBJECTS:
            self._leave(above, label)
            return
        node = SnapshotNode(value, None, None, above, label)
        self._inherit(node)
        try:
            node.kind, node.mark = self._marked(value)
        except fingerprints.TooLargeError:
            self._leave(above, label)
        except Exception:  # from an object's own code: it is skipped
            node.kind = None
        snapshot.nodes.append(node)
        snapshot.numbers[id(value)] = number
        if (gradient := self.adapter.gradient(value)) is not None:
            snapshot.gradients[number] = id(gradient), gradient._version
        if id(value) in self.weights:
            snapshot.slots[self.weights[id(value)]] = number
        if node.kind is not None or type(value) in _HOLDERS or issubclass(type(value), (tuple, frozenset)):
            (self.waiting if inner is None else self.wrappers).append(number)

    def _marked(self, value: Any) -> tuple[Kind | None, Any]:
        kind = self.kind(value)
        if kind is kinds.FILE:
            kinds.flush(value)  # else a fork has a copy of the unwritten buffer
        return kind, None if kind is None else kind.mark(value)

    def _inherit(self, node: SnapshotNode) -> None:
        if node.above >= 0:
            outer = self.snapshot.nodes[node.above]
            node.unlimited = outer.unlimited
            of_stream = node.label == ("attribute", "stream") and is_library_type(
                type(outer.value)
            )  # of a log's handler
            node.quiet = (
                outer.quiet or of_stream or (node.label[0] == "attribute" and _is_private(outer.value, node.label[1]))
            )
        node.unlimited = node.unlimited or rule_of(type(node.value)).unlimited

    def _leave(self, above: int, label: Label) -> None:
        name = self.snapshot.root(above) if above >= 0 else str(label[1])
        if name not in self.snapshot.unseen:
            self.snapshot.unseen.append(name)

    # -- what an object is ----------------------------------------------------------------------------------------
    def kind(self, value: Any) -> Kind | None:
        kind = type(value)
        if id(value) in self.weights:
            return self.adapter.weight(value)
        if issubclass(kind, type):
            return None if is_library_type(value) else kinds.CLASS
        if kind is types.FunctionType:
            return kinds.FUNCTION if is_user_function(value) else None
        if kind is types.ModuleType:
            return None if value.__name__ == "__main__" or is_library_module(value.__name__) else kinds.MODULE
        if issubclass(kind, dict) and _is_namespace(value):
            return None
        found = self.kind_of(kind)
        if found is None and kinds.is_value(kind) and kinds.has_identity_hash(value) and not rule_of(kind).opaque:
            return ObjectKind(rule_of(kind), is_library_type(kind))
        return (
            _checksum_kind(value, found) if found in (kinds.LIST, kinds.DICT) and len(value) > LONG_CONTAINER else found
        )

    def _kind_of_type(self, kind: type) -> Kind | None:
        rule = rule_of(kind)
        if kind in _KINDS:
            return _KINDS[kind]
        found = self.adapter.kind(kind)
        if found is not None and self.adapter.has_fields(kind):
            return kinds.SubclassKind(found, self._object_kind(kind, rule))
        if found is None and (not rule.opaque or kind.__module__ in ("builtins", "collections", "array")):
            found = kinds.container_kind(kind, rule)
        if found is None:
            found = kinds.builtin_kind(kind)
        if found is not None or rule.opaque or issubclass(kind, (tuple, frozenset)):
            return found
        if rule.named:
            return kinds.ReportedKind(rule.named, type_rules.COUNTERS.get(rule.counter) or _counted_by(rule.counter))
        if rule is type_rules.LIBRARY and kinds.is_value(kind):  # with a rule of its own it has state, hash or not
            return None
        if _is_whole(kind):
            return kinds.WHOLE
        return self._object_kind(kind, rule)

    def _object_kind(self, kind: type, rule: TypeRule) -> ObjectKind:
        extra = self.adapter.extra_state(kind)
        return (
            ObjectKind(rule, is_library_type(kind))
            if extra is None
            else ModuleKind(rule, is_library_type(kind), *extra)
        )

    # -- what it holds --------------------------------------------------------------------------------------------
    def parts(self, node: SnapshotNode) -> Iterator[tuple[Label, Any]]:
        value, kind = node.value, type(node.value)
        if kind is types.FunctionType:
            return self._of_function(value) if node.kind is not None else _of_wrapper(value)
        if kind is types.ModuleType and node.kind is None:
            return iter(((("attribute", "root"), value.root),)) if value.__name__ == "logging" else iter(())
        if kind is types.MethodType:
            return iter(((("name", "self"), value.__self__), (("", ""), value.__func__)))
        if kind is types.BuiltinFunctionType:
            return iter(((("", ""), value.__self__),))
        if kind is functools.partial:
            held = [("args", value.args), ("keywords", value.keywords), ("func", value.func)]
            return ((("attribute", name), part) for name, part in held)
        if issubclass(kind, (tuple, frozenset)):
            return ((("item", i), part) for i, part in enumerate(value))
        return iter(()) if node.kind is None else self._with_class(node.kind, value)

    def _with_class(self, kind: Kind, value: Any) -> Iterator[tuple[Label, Any]]:
        yield from kind.parts(value)
        yield from ((("attribute", name), part) for name, part in self.adapter.more_parts(value))
        yield from ((("attribute", name), part) for name, part in self.more_parts(value))
        for base in type(value).__mro__ if type(value).__module__ != "builtins" else ():
            if not is_library_type(base):
                yield ("name", base.__name__), base

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[Label, Any]]:
        yield from ((("attribute", name), part) for name, part in vars(function).items())
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield ("name", name), cell
        yield from ((("name", name), part) for name, part in _defaults(function))
        space = function.__globals__
        read, bound = global_names(function.__code__)
        for name in bound:
            yield ("name", name), self.spaces.setdefault((id(space), name), NamespaceEntry(space, name))
        for name in read:
            if name in space:
                yield ("name", name), space[name]


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code, given = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


@lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The globals that code and its inner functions read, and those that they assign, also as `globals()["name"]`."""
    read: dict[str, None] = {}
    bound: dict[str, None] = {}
    bound.update(dict.fromkeys(_given_to_globals(code)))
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read[str(instruction.argval)] = None
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            bound[str(instruction.argval)] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = global_names(constant)
            read.update(dict.fromkeys(inner[0]))
            bound.update(dict.fromkeys(inner[1]))
    return tuple(read), tuple(bound)


def _deleted(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("DELETE_NAME", "DELETE_GLOBAL"):
            yield str(instruction.argval)
    yield from _given_to_globals(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _deleted(constant)


def _given_to_globals(code: types.CodeType) -> Iterator[str]:
    """The names in `globals()["name"]`, as far as they are constants."""
    return (one for one in code.co_consts if "globals" in code.co_names and isinstance(one, str) and one.isidentifier())


def deleted_names(code: types.CodeType, space: dict[str, Any]) -> list[tuple[str, NamespaceEntry]]:
    """The names in `space` that the statements of a cell may delete, each with its entry there."""
    names = dict.fromkeys(_deleted(code))
    return [(name, NamespaceEntry(space, name)) for name in names if name in space]


_KINDS: Mapping[type, Kind | None] = {
    types.CellType: kinds.CELL,
    NamespaceEntry: kinds.BINDING,
    types.FunctionType: None,
    types.MethodType: None,
    types.BuiltinFunctionType: None,
    functools.partial: None,
}


# What methods in C are of that change nothing of the user's.
_NOT_USED_BY_METHODS = (type, types.ModuleType, type(None))

# Immutable, or not compared, but with parts.
_HOLDERS = frozenset(
    {types.MethodType, types.BuiltinFunctionType, functools.partial, types.FunctionType, types.ModuleType}
)


def _of_wrapper(function: types.FunctionType) -> Iterator[tuple[Label, Any]]:
    """What a library's function holds: the user's function, if it is a decorator's."""
    for cell in function.__closure__ or ():
        content = kinds.CELL.mark(cell)
        if content is not kinds.MISSING:
            yield ("", ""), content
    yield from ((("attribute", name), part) for name, part in vars(function).items())


def _counted_by(name: str) -> Callable[[Any], Any]:
    return lambda value: kinds.attributes(value).get(name)


def _is_whole(kind: type) -> bool:
    """Whether its state is not in its attributes, or its package has the best way to tell it."""
    bases = [base for base in kind.__mro__[:-1] if is_library_type(base)]
    if not bases or kinds.is_exception(kind) or str(bases[0].__module__).partition(".")[0] in ("torch", "types"):
        return False
    tells = any(rule_of(base).whole and "__setstate__" in vars(base) for base in bases)
    return tells or kinds.is_native(kind)


def _is_private(value: Any, name: Any) -> bool:
    """Whether `name` is a private attribute of a library's object."""
    return str(name).startswith("_") and is_library_type(type(value))


def _is_namespace(value: dict[Any, Any]) -> bool:
    return "__name__" in value and ("__builtins__" in value or "__spec__" in value)


class _ChecksumKind(BaseKind):
    """A long container of plain data, compared by a checksum; its parts are not numbered."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def mark(self, value: Any) -> Any:
        return _checksum(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(_checksum(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return self.kind.content(value, self.kind.mark(value))

    def put(self, value: Any, content: Any) -> Any:
        return self.kind.put(value, content)


_LONG_LIST, _LONG_DICT = _ChecksumKind(kinds.LIST), _ChecksumKind(kinds.DICT)


def _checksum_kind(value: Any, kind: Kind) -> Kind:
    flat = kinds.only_atoms(value.values() if isinstance(value, dict) else value)
    if flat or _checksum(value) is None:
        return kind
    return _LONG_DICT if kind is kinds.DICT else _LONG_LIST


def _checksum(value: Any) -> int | None:
    """A checksum of nested plain data; None for anything else. (marshal's version 2 does not depend on reference
    counts.)"""
    try:
        return zlib.crc32(marshal.dumps(value, 2))
    except ValueError:
        return None
