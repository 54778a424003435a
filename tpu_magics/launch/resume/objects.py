"""What a training changes, as JSON with its tensors beside it: written from the objects of one process, applied in
place to those of another that has run the same code up to the same loop.

The objects are those that the function reaches when its first training loop begins, marked then as before a fork
(launch/state/). An object is known by its path from there. No code of a checkpoint is run: it has numbers, texts,
tensors, containers of them, and paths.
"""

from __future__ import annotations

import base64
import math
import re
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.protocols import Label, StateAdapter, StateStore
from tpu_magics.launch.state import kinds
from tpu_magics.launch.state.kinds import Fields
from tpu_magics.launch.state.snapshot import SnapshotNode, StateSnapshot, take_snapshot

Data = Any
"""What json can write."""
_PLAIN = (int, bool, str, type(None))
_CONTAINERS: Mapping[type, str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    dict: "dict",
    OrderedDict: "ordered",
    Counter: "counter",
}
_MAKERS: Mapping[str, Callable[[Any], Any]] = {name: kind for kind, name in _CONTAINERS.items()}
_FACTORIES: Mapping[str, Any] = {kind.__name__: kind for kind in (int, float, list, dict, set, str)}
_DEEPEST = 200


class NotSaveable(Exception):
    """A value that a checkpoint cannot have; the text says what it is."""


class Misfit(Exception):
    """A checkpoint does not fit the objects here; the text says where."""


@dataclass
class Document:
    """`data`: JSON; `tensors`: by key, on any device; `left`: what is not in it, by path, with the reason."""

    data: dict[str, Data]
    tensors: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


class TrackedObjects:
    """The objects that a training reaches, marked when this is made. `roots`: by name; `adapter`: how they are compared
    (launch/state/snapshot.py); `whole`: those of which all is written, because they begin differently after a
    resume; `before`: those that were tracked so far, whose marks are kept."""

    def __init__(
        self,
        roots: Sequence[tuple[str, Any]],
        adapter: StateAdapter,
        store: StateStore,
        whole: Sequence[Any] = (),
        before: TrackedObjects | None = None,
    ) -> None:
        self.snapshot = take_snapshot(roots, adapter, {}, store.tables, store.wrapped)
        self.store = store
        self.keys = _unique_keys(self.snapshot)
        self.wrappers = dict(self._wrappers())
        self.roots = {name: self.snapshot.numbers.get(id(value), -1) for name, value in roots}
        known = before.snapshot if before is not None else StateSnapshot()
        for node in self.snapshot.nodes:
            if (number := known.numbers.get(id(node.value))) is not None:
                node.mark = known.nodes[number].mark
        for one in whole:
            self.snapshot.nodes[self.snapshot.numbers[id(one)]].mark = {}
        self.by_key = dict(zip(self.keys, self.snapshot.nodes, strict=True))

    def _wrappers(self) -> Iterator[tuple[str, str]]:
        """The keys of wrappers, each with that of what it wraps; and of what only they reach, each with ""."""
        outside: set[int] = set()
        for number, node in enumerate(self.snapshot.nodes):
            inner = self.store.wrapped(node.value)
            if inner is not None:
                place = self.snapshot.numbers.get(id(inner))
                yield self.keys[number], "" if place is None else self.keys[place]
            elif node.above in outside:
                yield self.keys[number], ""
            else:
                continue
            outside.add(number)

    def has(self, values: Iterable[Any]) -> bool:
        """Whether these objects are among them."""
        return all(id(one) in self.snapshot.numbers for one in values)

    # -- writing --------------------------------------------------------------------------------------------------
    def changes(self, frames: Sequence[Mapping[str, Any]], more: Any, gradients: bool = False) -> Document:
        """What differs from the start, without fetching from the device. `frames`: the local variables of the functions
        that run, the outermost first; `more`: plain data to write beside; `gradients`: also those of the parameters."""
        return _Writer(self).document(frames, more, gradients)

    def can_write(self, value: Any) -> bool:
        """Whether a checkpoint can have all of it."""
        try:
            _Writer(self).document((), value, False)
        except NotSaveable:
            return False
        return True

    # -- reading --------------------------------------------------------------------------------------------------
    def apply(self, data: Mapping[str, Data], tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Change the objects as `changes` found them. Returns the local variables of each function. Raises Misfit, and
        then objects may be changed in part: the run cannot go on."""
        return _Reader(self.by_key, self.store, tensors).apply(data, self)


def _unique_keys(snapshot: StateSnapshot) -> list[str]:
    counts: Counter[str] = Counter()
    keys = []
    for number, node in enumerate(snapshot.nodes):
        path = f"{snapshot.full_path(number)}: {type(node.value).__name__}"
        counts[path] += 1
        keys.append(path if counts[path] == 1 else f"{path} ({counts[path]})")
    return keys


# -- writing ----------------------------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, objects: TrackedObjects) -> None:
        self.objects = objects
        self.store = objects.store
        self.numbers = objects.snapshot.numbers
        self.tensors: dict[str, Any] = {}
        self.left: dict[str, str] = {}
        self._names: dict[int, str] = {}  # keys of tensors, numbers of containers, by id
        self._keep: list[Any] = []  # so that no id is used again
        self._path = ""

    def document(self, frames: Sequence[Mapping[str, Any]], more: Any, gradients: bool) -> Document:
        changed = {}
        for key, node in self.objects.by_key.items():
            if node.kind is not None:
                found = self._changed(key, node)
                if found is not None:
                    changed[key] = found
        self._path = "local"
        local = [self._locals(names) for names in frames]
        self._path, self.numbers, self._names = "more", {}, {}  # it is read before the objects are known
        data: dict[str, Data] = {"objects": changed, "locals": local, "more": self._encoded(more, 0)}
        if gradients:
            named = ((key, node.value) for key, node in self.objects.by_key.items())
            found_gradients = self.store.gradients(named)
            data["gradients"] = {key: self._tensor(gradient) for key, gradient in found_gradients}
        data["wrappers"] = {key: inner for key, inner in self.objects.wrappers.items() if inner or key in changed}
        return Document(data, self.tensors, self.left)

    def _changed(self, key: str, node: SnapshotNode) -> Data | None:
        kind, value = node.kind, node.value
        assert kind is not None
        self._path = key
        try:
            if not kind.changed(value, node.mark):
                return None
            if kind.named:
                return self._without(node, kind.named)
            if self.store.is_tensor(value):
                return self._tensor(value)
            content = kind.content(value, node.mark)
        except (NotSaveable, kinds.NotUpdatableError) as problem:
            return self._without(node, str(problem))
        except Exception as error:  # from an object's own code
            return self._without(node, f"{type(error).__name__}: {error}")
        return self._content(node, content)

    def _content(self, node: SnapshotNode, content: Any) -> Data | None:
        """All of it; without the pieces that cannot be saved; None if nothing is left."""
        assert node.kind is not None
        try:
            return self._try(content)
        except NotSaveable as problem:
            reason = str(problem)
        bad: set[Any] = set()
        for label, piece in node.kind.pieces(content):
            try:
                self._try(piece, keep=False)
            except NotSaveable as problem:
                bad.add(label[1])
                self._leave(node, (label,), str(problem))
        if not bad:
            return self._without(node, reason)
        rest = node.kind.without(content, node.mark, bad)
        if rest is None:
            return None
        try:
            return self._try(rest)
        except NotSaveable as problem:
            return self._without(node, str(problem))

    def _without(self, node: SnapshotNode, why: str) -> Data:
        """Nothing of an object can be written."""
        self._leave(node, (), why)
        nothing: Data = None
        return nothing

    def _leave(self, node: SnapshotNode, labels: tuple[Label, ...], why: str) -> None:
        if not node.quiet:
            number = self.numbers[id(node.value)]
            self.left.setdefault(self.objects.snapshot.path(number, *labels), why)

    def _locals(self, names: Mapping[str, Any]) -> dict[str, Data]:
        found = {}
        for name, value in names.items():
            try:
                found[name] = self._try(value)
            except NotSaveable as problem:
                if id(value) not in self.numbers:
                    self.left.setdefault(name, str(problem))
        return found

    def _try(self, value: Any, keep: bool = True) -> Data:
        """Raises NotSaveable, and then leaves nothing behind, nor without `keep`."""
        known = [(each, len(each)) for each in (self.tensors, self._names)]
        try:
            found = self._encoded(value, 0)
        except NotSaveable:
            keep = False
            raise
        finally:
            for each, length in known:
                while not keep and len(each) > length:
                    each.popitem()  # the newest
        return found

    def _encoded(self, value: Any, depth: int) -> Data:
        if type(value) in _PLAIN:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"k": "float", "v": repr(value)}
        if depth > _DEEPEST:
            raise NotSaveable("it is nested too deeply")
        if id(value) in self.numbers:
            return {"k": "ref", "v": self.objects.keys[self.numbers[id(value)]]}
        if self.store.is_tensor(value):
            return self._tensor(value)
        if id(value) in self._names:
            return {"k": "again", "v": self._names[id(value)]}
        return self._new(value, depth)

    def _new(self, value: Any, depth: int) -> Data:
        kind = type(value)
        if isinstance(value, Fields):
            new = {name: self._encoded(item, depth + 1) for name, item in value.new.items()}
            return {"k": "fields", "new": new, "gone": value.gone}
        if kind is complex or kind is range or kind is slice:
            parts = [value.real, value.imag] if kind is complex else [value.start, value.stop, value.step]
            return {"k": kind.__name__, "v": [self._encoded(part, depth + 1) for part in parts]}
        if kind in (bytes, bytearray):
            return {"k": kind.__name__, "v": base64.b64encode(value).decode()}
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return {"k": "module", "v": value.__name__}
        if value is Ellipsis or value is NotImplemented or value is kinds.MISSING:
            raise NotSaveable(f"`{value}`")
        name = _CONTAINERS.get(kind) or ("default" if kind is defaultdict else "")
        if name:
            return self._container(value, name, depth)
        found = self.store.plain(value)
        if found is None:
            raise NotSaveable(f"an object of {kind.__module__}.{kind.__qualname__} that was made during the training")
        name, content = found
        return {"k": name, "v": self._tensor(content) if self.store.is_tensor(content) else content}

    def _container(self, value: Any, name: str, depth: int) -> Data:
        number = self._names[id(value)] = str(len(self._names))
        self._keep.append(value)
        parts = [list(pair) for pair in value.items()] if isinstance(value, dict) else list(value)
        encoded: dict[str, Data] = {"k": name, "n": number}
        if name == "default":
            factory = getattr(value.default_factory, "__name__", "")
            if _FACTORIES.get(factory) is not value.default_factory:
                raise NotSaveable("a defaultdict with a function of its own")
            encoded["f"] = factory
        if isinstance(value, dict):
            encoded["v"] = [[self._encoded(key, depth + 1), self._encoded(item, depth + 1)] for key, item in parts]
        else:
            encoded["v"] = [self._encoded(item, depth + 1) for item in parts]
        return encoded

    def _tensor(self, tensor: Any) -> Data:
        described = self.store.describe(tensor)
        key = self._names.get(id(tensor))
        if key is None:
            key = self._names[id(tensor)] = f"{self._path} {len(self._names)}"
            self._keep.append(tensor)
            self.tensors[key] = tensor
        return {"k": "tensor", "v": key, **described}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_more(data: Mapping[str, Data], tensors: Mapping[str, Any], store: StateStore) -> Any:
    """What was given as `more` to `TrackedObjects.changes`. Raises Misfit."""
    return _Reader({}, store, tensors).decoded(data["more"])


def _is_not_imported(encoded: Data) -> bool:
    """Whether it is a module that the program has not imported here: a checkpoint imports nothing."""
    return isinstance(encoded, dict) and encoded["k"] == "module" and encoded["v"] not in sys.modules


def _path(key: str) -> str:
    """An object's key as a person knows it."""
    return re.sub(r"^\d+:", "", key.rpartition("\0")[2].rpartition(": ")[0]) or key


def _wrapping(wrappers: Mapping[str, str]) -> set[str]:
    """The keys of the wrappers themselves."""
    return {key for key, inner in wrappers.items() if inner}


class _Reader:
    def __init__(self, nodes: Mapping[str, SnapshotNode], store: StateStore, tensors: Mapping[str, Any]) -> None:
        self.nodes = nodes
        self.store = store
        self.tensors = tensors
        self._made: dict[str, Any] = {}
        self._wrappers: Mapping[str, str] = {}

    def apply(self, data: Mapping[str, Data], objects: TrackedObjects) -> list[dict[str, Any]]:
        self._wrappers = data["wrappers"]
        missing = [key for key in data["objects"] if key not in self.nodes and key not in self._wrappers]
        if missing:
            more = f", nor {len(missing) - 1} more" if missing[1:] else ""
            raise Misfit(f"there is no {_path(missing[0])}{more}")
        decoded = {}
        for key, encoded in data["objects"].items():
            if key not in self.nodes:
                continue
            node = self.nodes[key]
            if self.store.is_tensor(node.value) and encoded.get("k") == "tensor":
                try:
                    self.store.put(node.value, self._content(encoded["v"]), encoded)
                except ValueError as problem:
                    raise Misfit(f"{_path(key)}: {problem}") from problem
            else:
                decoded[key] = self.decoded(encoded)
        for key, content in decoded.items():
            node = self.nodes[key]
            if node.kind is None:
                raise Misfit(f"{key} cannot be changed here")
            node.kind.put(node.value, content)
        for key, encoded in data.get("gradients", {}).items():
            self.store.set_gradient(self.nodes[key].value, self.decoded(encoded))
        return [
            {
                name: self._local(objects, f"{n}:{name}", encoded)
                for name, encoded in names.items()
                if not _is_not_imported(encoded)
            }
            for n, names in enumerate(data["locals"])
        ]

    def _local(self, objects: TrackedObjects, root: str, encoded: Data) -> Any:
        """A local variable. With other wrappers than at the checkpoint, one with the same thing inside stays."""
        value = self.decoded(encoded)
        number = objects.roots.get(root, -1)
        if number < 0 or _wrapping(self._wrappers) == _wrapping(objects.wrappers):
            return value
        here = objects.snapshot.nodes[number].value
        return here if self._inside(here) is self._inside(value) else value

    def _inside(self, value: Any) -> Any:
        inner = self.store.wrapped(value)
        return value if inner is None else inner

    def _content(self, key: str) -> Any:
        if key not in self.tensors:
            raise Misfit(f"the tensor {key} is missing")
        return self.tensors[key]

    def decoded(self, encoded: Data) -> Any:
        if not isinstance(encoded, dict):
            return encoded
        kind: str = encoded["k"]
        value: Any = encoded.get("v")
        if kind == "float":
            return float(value)
        if kind == "ref":
            key: str = value if value in self.nodes else self._wrappers.get(value, "")
            if key not in self.nodes:
                raise Misfit(f"there is no {value}")
            return self.nodes[key].value
        if kind == "again":
            return self._made[value]
        if kind == "tensor":
            return self._tensor(encoded)
        if kind == "fields":
            return Fields({name: self.decoded(item) for name, item in encoded["new"].items()}, list(encoded["gone"]))
        if kind == "complex":
            return complex(*map(self.decoded, value))
        if kind in ("range", "slice"):
            return (range if kind == "range" else slice)(*map(self.decoded, value))
        if kind in ("bytes", "bytearray"):
            return (bytes if kind == "bytes" else bytearray)(base64.b64decode(value))
        if kind in _MAKERS or kind == "default":
            return self._container(encoded, kind, value)
        if kind == "module":
            if _is_not_imported(encoded):
                raise Misfit(f"the module {value} is not imported")
            return sys.modules[value]
        plain = self.decoded(value) if isinstance(value, dict) else value
        return self.store.from_plain(kind, plain)

    def _container(self, encoded: Mapping[str, Data], kind: str, value: Any) -> Any:
        if kind in ("list", "deque", "set"):  # may contain themselves
            made = self._made[encoded["n"]] = _MAKERS[kind](())
            items = [self.decoded(item) for item in value]
            made.update(items) if kind == "set" else made.extend(items)
            return made
        if kind in ("tuple", "frozenset"):
            made = self._made[encoded["n"]] = _MAKERS[kind]([self.decoded(item) for item in value])
            return made
        made = defaultdict(_FACTORIES[encoded["f"]]) if kind == "default" else _MAKERS[kind]({})
        self._made[encoded["n"]] = made
        for key, item in value:
            dict.__setitem__(made, self.decoded(key), self.decoded(item)) if kind != "ordered" else made.__setitem__(
                self.decoded(key), self.decoded(item)
            )
        return made

    def _tensor(self, encoded: Mapping[str, Data]) -> Any:
        key = encoded["v"]
        if f"tensor {key}" not in self._made:
            self._made[f"tensor {key}"] = self.store.make(self._content(key), encoded)
        return self._made[f"tensor {key}"]
