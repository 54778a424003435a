"""What a function changed: in a worker, after the function, what differs from the snapshot and can be pickled; in the
notebook, after the run, rank 0's changes applied in place, all of them or none."""

from __future__ import annotations

import io
import itertools
import pickle
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.backends.protocols import Label, NotebookState, Results
from tpu_magics.launch.state import kinds, settings
from tpu_magics.launch.state.pickling import MARK, SizeProbe, StatePickler, WorkerOnlyError, dumps, load_entries
from tpu_magics.launch.state.settings import SettingChanges, Settings
from tpu_magics.launch.state.snapshot import SnapshotNode, StateSnapshot
from tpu_magics.launch.state.type_rules import rule_of
from tpu_magics.runs.files import open_record, read_record
from tpu_magics.runs.origin import is_library_type

MAX_BYTES = 256 * 2**20  # of all changes together, without optimizers and modules
STATE, BLOBS = "result-state.pkl", "result-state.bin"
NAMES_NUMBER = -1  # stands for the names that a cell assigned
_ALIGNED = 64
_MANY, _DEEP = 10_000, 20  # items of a list or dict that are tried one by one, and containers within each other


@dataclass
class Changes:
    """What a rank's function changed. `contents`: by number; `names`: what a cell assigned; `left`: what is not updated
    in the notebook, by name, with the reason; `sums`, `sizes`: checksums and bytes by number; `random`: the states of
    random generators, None if none was used; `settings`: of the process; `gradients`: of tensors, by number, None for
    one that it has no more; `tables`: what modules consist of now, by number; `weights`: the values of tensors that are
    in no model any more, by number."""

    contents: dict[int, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    random: Any = None
    settings: SettingChanges | None = None
    gradients: dict[int, Any] = field(default_factory=dict)
    tables: dict[int, Any] = field(default_factory=dict)
    weights: dict[int, Any] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[dict[Any, Any], ...]:
        """What is pickled one by one, each by its key."""
        return self.contents, self.names, self.gradients, self.tables, self.weights

    def leave_all(self, snapshot: StateSnapshot) -> None:
        """Update nothing in the notebook, since the parts of copies cannot be found there again."""
        self.left.update({snapshot.root(number): snapshot.mismatched for number in self.contents})
        for entries in (self.contents, self.gradients, self.tables, self.weights):
            entries.clear()


class ChangeCollector:
    """Compares one rank's objects with the snapshot after its function. `models`: the trained ones of this rank;
    `before`: the settings of the process when its function began; `rebuilt`: the models of other parts now: the modules
    of the notebook are the same objects in them, wherever they stand."""

    def __init__(
        self,
        snapshot: StateSnapshot,
        models: Mapping[str, Any],
        adapter: NotebookState,
        before: Settings | None = None,
        rebuilt: Collection[str] = (),
    ) -> None:
        self.before = before
        self.snapshot = snapshot
        self.adapter = adapter
        self.models = models
        self.rebuilt = {number: model for (model, _), number in snapshot.modules.items() if model in rebuilt}
        self.lost: set[str] = set()  # the models of `rebuilt` with parts that cannot be pickled
        parts = [*_parts_in_place(snapshot, models, adapter, rebuilt)]
        self.numbers = _numbers(snapshot, models, adapter, parts)
        self.replaced = {number: part for number, part in parts if part is not snapshot.nodes[number].value}
        self.tensors: list[Any] = []
        self._within: list[int] = []  # ids of the containers whose items are tried now
        self._probe = self._new_probe()

    def changes(self) -> Changes:
        """Compare all objects with the snapshot, without fetching from the device."""
        changes = Changes(random=self.adapter.random_changes(self.snapshot.random))
        if self.before is not None:
            changes.settings = settings.changes(self.before)
        for number, node in enumerate(self.snapshot.nodes):
            if node.kind is not None and id(node.value) in self.numbers:
                self._compare(number, node, changes)
        for number, part in self.replaced.items():
            if self._is_exchanged(number):
                self._leave(number, (), f"the model has a {type(part).__name__} in its place", changes)
        _drop_largest(self.snapshot, changes)
        self._add_gradients(changes)
        self._add_tables(changes)
        self._add_removed_weights(changes)
        return changes

    def _add_tables(self, changes: Changes) -> None:
        for number, model in self.rebuilt.items():
            content = self.adapter.changed_tables(self.snapshot.nodes[number].value, self.snapshot.tables[number])
            if content is None:
                continue
            if self._try_pickling(number, content, changes) is None:
                changes.tables[number] = content
            else:
                self.lost.add(model)

    def _add_removed_weights(self, changes: Changes) -> None:
        """An optimizer, or another name of the notebook, may have those of a part that was taken out of its model."""
        now = {id(tensor) for tensor in self.adapter.named(self.models).values()} if self.rebuilt else set()
        for (model, _), number in self.snapshot.slots.items():
            value = self.snapshot.nodes[number].value
            if model not in self.rebuilt.values() or number in self.replaced or id(value) in now:
                continue
            content = value.detach()
            if self._try_pickling(number, content, changes) is None:
                changes.weights[number] = content

    def _add_gradients(self, changes: Changes) -> None:
        """Add gradients that a step did not set to None, as `zero_grad()` at the beginning of a step leaves them."""
        for number, node in enumerate(self.snapshot.nodes):
            value = node.value if self._keeps(number) else self.replaced[number]
            now, before = self.adapter.gradient(value), self.snapshot.gradients.get(number)
            if before == (None if now is None else (id(now), now._version)):
                continue
            try:
                self._probe.look(now)  # not _try_pickling: each rank has its own gradients
            except Exception as error:
                changes.left[f"{self.snapshot.path(number)}.grad"] = pickling_reason(error)
                now = None
            changes.gradients[number] = now
        total = sum(self.adapter.tensor_bytes(now) for now in changes.gradients.values() if now is not None)
        if total > MAX_BYTES:
            changes.left["gradients"] = f"{total / 2**20:,.0f} MB; they are None here, as after zero_grad()"
            changes.gradients = dict.fromkeys(changes.gradients)

    def add_names(self, changes: Changes, names: Mapping[str, Any]) -> None:
        """Add those names of a cell whose values can be pickled, of objects of the user's classes the attributes that
        can be."""
        for name, value in names.items():
            if type(value) in kinds.ATOMS or self._try_pickling(NAMES_NUMBER, value, changes) is None:
                changes.names[name] = value
            elif (part := self._picklable_part(name, value, changes)) is not None:
                changes.names[name] = part
        changes.sums.pop(NAMES_NUMBER, None)
        changes.left.update(
            {name: kinds.CACHE.named for name, value in changes.names.items() if kinds.has_cached(value)}
        )

    def _picklable_part(self, name: str, value: Any, changes: Changes) -> Any:
        """An object, a dict or a list with the attributes or items that can be pickled; None if it is not their fault.
        The others are named."""
        if type(value) in (dict, list):
            return None if id(value) in self._within else self._picklable_items(name, value, changes)
        own = kinds.attributes(value)
        if is_library_type(type(value)) or isinstance(value, type) or not hasattr(value, "__dict__"):
            return None
        problems = {key: self._try_pickling(NAMES_NUMBER, item, changes) for key, item in own.items()}
        bad = {key: problem for key, problem in problems.items() if problem is not None}
        try:
            part = object.__new__(type(value))
            vars(part).update({key: item for key, item in own.items() if key not in bad})
        except TypeError:  # of a class in C
            return None
        if not bad or self._try_pickling(NAMES_NUMBER, part, changes) is not None:
            return None
        changes.left.update({f"{name}.{key}": pickling_reason(problem) for key, problem in bad.items()})
        return part

    def _picklable_items(self, name: str, value: Any, changes: Changes) -> Any:
        """In a list, None stands for an item that cannot be pickled: the others keep their places."""
        kept: dict[Any, Any] = {}
        bad: dict[str, str] = {}
        if len(value) > _MANY or len(self._within) > _DEEP:
            return None
        self._within.append(id(value))
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            problem = None if type(item) in kinds.ATOMS else self._try_pickling(NAMES_NUMBER, (key, item), changes)
            path = f"{name}[{key!r}]" if type(key) in kinds.ATOMS else f"{name}[...]"
            if problem is None:
                kept[key] = item
            elif (part := self._picklable_part(path, item, changes)) is not None:
                kept[key] = part
            else:
                bad[path] = pickling_reason(problem)
        self._within.pop()
        if not kept:
            return None
        changes.left.update(bad)
        return kept if isinstance(value, dict) else [kept.get(place) for place in range(len(value))]

    def _is_exchanged(self, number: int) -> bool:
        """Whether a part of a model has another one of another class in its place, with the same weights, if any."""
        had = self.snapshot.nodes[number]
        is_module = isinstance(had.kind, kinds.SubclassKind)
        return is_module and type(self.replaced[number]) is not type(had.value)

    def _keeps(self, number: int) -> bool:
        """Whether it is still the object of the notebook: a parameter that a graph holds cannot move to the device."""
        return number not in self.replaced or self._is_exchanged(number)

    def _compare(self, number: int, node: SnapshotNode, changes: Changes) -> None:
        assert node.kind is not None
        value = node.value if self._keeps(number) else self.replaced[number]
        if node.kind is kinds.FILE:
            kinds.flush(value)  # nothing else does, as the worker ends
        try:
            if not node.kind.changed(value, node.mark):
                return
            if node.kind.named:
                self._leave(number, (), node.kind.named, changes)
                return
            content = node.kind.content(value, node.mark)
        except kinds.NotUpdatableError as error:
            self._leave(number, (), str(error), changes)
            return
        except Exception as error:  # from an object's own code
            self._leave(number, (), f"{type(error).__name__}: {error}", changes)
            return
        content = self._picklable(number, node, content, changes)
        if content is not None:
            changes.contents[number] = content

    def _picklable(self, number: int, node: SnapshotNode, content: Any, changes: Changes) -> Any:
        assert node.kind is not None
        problem = self._try_pickling(number, content, changes)
        if problem is None:
            return content
        bad: set[Any] = set()
        for label, piece in node.kind.pieces(content):
            problem_of_piece = self._try_pickling(number, piece, changes)
            if problem_of_piece is not None:
                bad.add(label[1])
                if _is_missed(piece[1] if label[0] == "item" else piece):
                    self._leave_piece(number, node, label, problem_of_piece, changes)
        if not bad:
            self._leave(number, (), pickling_reason(problem), changes)
            return None
        rest = node.kind.without(content, node.mark, bad)
        if rest is None or self._try_pickling(number, rest, changes) is not None:
            return None
        return rest

    def _try_pickling(self, number: int, content: Any, changes: Changes) -> Exception | None:
        """Why it cannot be pickled; None if it can, then its size and checksum are recorded."""
        try:
            changes.sizes[number], changes.sums[number] = self._probe.look(content)
        except Exception as error:  # pickle.PicklingError, TypeError, AttributeError, RecursionError, a class's own
            self.tensors += self._probe.tensors
            self._probe = self._new_probe()
            return error
        return None

    def _new_probe(self) -> SizeProbe:
        return SizeProbe(self.snapshot, self.numbers, self.adapter)

    def _leave_piece(self, number: int, node: SnapshotNode, label: Label, problem: Exception, changes: Changes) -> None:
        private = rule_of(type(node.value)).quiet and str(label[1]).startswith("_")
        of_process = isinstance(problem, WorkerOnlyError) or pickling_reason(problem) == "a lock"
        replaces = of_process and _existed_before(node.mark, label[1])
        if not private and not replaces:
            self._leave(number, (label,), pickling_reason(problem), changes)

    def _leave(self, number: int, labels: tuple[Label, ...], why: str, changes: Changes) -> None:
        node = self.snapshot.nodes[number]
        if not node.quiet or node.kind is kinds.WHOLE:
            path = self.snapshot.path(number, *labels)
            changes.left.setdefault(path, why)

    # -- writing --------------------------------------------------------------------------------------------------
    def write(self, changes: Changes, folder: Path) -> None:
        """Write the changes completely, or not at all. Raises OSError."""
        tensors = [*self.tensors, *self._probe.tensors]
        if tensors:
            self.adapter.settle()
        fetched = dict(zip(map(id, tensors), self.adapter.fetch(tensors), strict=True))
        self._forget_unchanged(changes, fetched)
        while (pickled := self._pickled(changes, fetched)) is None:
            pass
        file, pickler, ends = pickled
        temporary = folder / f"{STATE}.tmp"
        try:
            positions = _write_blobs(pickler.blobs, folder / BLOBS)
            keys = [list(entries) for entries in changes.entries]
            summary = (keys, changes.left, changes.random, changes.settings)
            record = (file.getvalue(), ends, positions, pickler.inside, summary)
            temporary.write_bytes(pickle.dumps(record))
            temporary.replace(folder / STATE)
        except OSError:
            for path in (temporary, folder / BLOBS):
                path.unlink(missing_ok=True)
            raise

    def _pickled(
        self, changes: Changes, fetched: dict[int, Any]
    ) -> tuple[io.BytesIO, StatePickler, list[tuple[int, int]]] | None:
        """All entries, with the end of each, as the others can be read without it. None if one cannot be pickled after
        all: it is left out now, and named."""
        file = io.BytesIO()
        pickler = StatePickler(file, self.snapshot, self.numbers, self.adapter)
        pickler.fetched = fetched
        ends = []
        for entries in changes.entries:
            for key, entry in entries.items():
                try:
                    pickler.dump(entry)
                except Exception as error:  # pickle.PicklingError, a class's own
                    name = key if isinstance(key, str) else self.snapshot.path(key)
                    changes.left[name] = pickling_reason(error)
                    del entries[key]
                    return None
                ends.append((file.tell(), len(pickler.inside)))
        return file, pickler, ends

    def _forget_unchanged(self, changes: Changes, fetched: Mapping[int, Any]) -> None:
        """Drop tensors that were only moved to the device."""
        for number, content in list(changes.contents.items()):
            node = self.snapshot.nodes[number]
            if self.adapter.is_unchanged_on_device(node.value, node.mark, content, fetched):
                del changes.contents[number]


class ResultPickler:
    """Pickles what rank 0 returns, with references to the notebook's objects."""

    def __init__(self, pickles: Results, collector: ChangeCollector) -> None:
        self._pickles = pickles
        self._collector = collector

    def dumps(self, value: Any) -> bytes:
        """Pickle for `pickling.loads`, like `Backend.dumps`. The TpuMagicsError names what cannot be pickled."""
        one = self._collector
        try:
            return MARK + dumps(value, one.snapshot, one.numbers, one.adapter)
        except Exception:
            data: bytes = self._pickles.dumps(value)
            return data


def _write_blobs(blobs: list[Any], path: Path) -> list[tuple[int, int]]:
    positions = []
    with open(path, "wb") as file:
        for blob in blobs:
            start = -(-file.tell() // _ALIGNED) * _ALIGNED
            file.seek(start)
            file.write(blob)
            positions.append((start, blob.nbytes))
        file.truncate(max(file.tell(), 1))
    return positions


def _parts_in_place(
    snapshot: StateSnapshot, models: Mapping[str, Any], adapter: NotebookState, rebuilt: Collection[str]
) -> Iterator[tuple[int, Any]]:
    """The modules and tensors that stand now where those of the notebook did, by their numbers; not a new one in the
    place of a tensor that stands elsewhere now."""
    same = {name: model for name, model in models.items() if name not in rebuilt}
    for known, now in ((snapshot.slots, adapter.named(same)), (snapshot.modules, adapter.modules(same))):
        yield from ((known[key], part) for key, part in now.items() if key in known)
    own = [
        (snapshot.slots.get((name, key)), part)
        for (name, inner), number in snapshot.modules.items()
        if name in rebuilt
        for key, part in adapter.own_tensors(snapshot.nodes[number].value, inner)
    ]
    used = {id(part) for part in adapter.named({name: models[name] for name in rebuilt}).values()}
    for slot, part in own:
        if slot is not None and (part is snapshot.nodes[slot].value or id(snapshot.nodes[slot].value) not in used):
            yield slot, part


def _numbers(
    snapshot: StateSnapshot, models: Mapping[str, Any], adapter: NotebookState, parts: Iterable[tuple[int, Any]]
) -> dict[int, int | tuple[str, int, str]]:
    """The numbers by id, also of objects that replaced a part of a model in this worker."""
    numbers: dict[int, int | tuple[str, int, str]] = dict(snapshot.numbers)
    for number, node in enumerate(snapshot.nodes):
        if node.kind is not None:
            numbers.update({id(own): ("own", number, name) for name, own in adapter.own_dicts(node.value)})
    for number in _parts_of_unreturned_models(snapshot, models):
        numbers.pop(id(snapshot.nodes[number].value), None)
    for number, part in parts:
        numbers.setdefault(id(part), number)
    return numbers


def _is_missed(value: Any) -> bool:
    """Whether a worker's object that cannot be pickled is reported: not a widget, which no page shows."""
    rule = rule_of(type(value))
    return not (rule.stays and rule.quiet)


def _existed_before(mark: Any, name: Any) -> bool:
    """Whether `name` had a value before the function. It stays if the worker's value belongs to the worker."""
    if isinstance(mark, tuple):
        if not all(isinstance(part, tuple) for part in mark) or len({len(part) for part in mark}) > 1:
            return any(_existed_before(part, name) for part in mark if isinstance(part, (tuple, dict)))
        mark = dict(zip(*mark, strict=True))
    before = mark.get(name) if isinstance(mark, dict) else mark
    return before is not None and before is not kinds.MISSING


def _parts_of_unreturned_models(snapshot: StateSnapshot, models: Mapping[str, Any]) -> Iterator[int]:
    """Parts of models that are not returned: objects that refer to them are pickled with a copy."""
    for known in (snapshot.slots, snapshot.modules):
        yield from (number for (model, _), number in known.items() if model not in models)


def _drop_largest(snapshot: StateSnapshot, changes: Changes) -> None:
    """Drop the largest contents until the rest is within the limit."""
    sizes = {n: changes.sizes[n] for n in changes.contents if not snapshot.nodes[n].unlimited}
    total = sum(sizes.values())
    for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if total <= MAX_BYTES:
            return
        total -= sizes[number]
        del changes.contents[number]
        changes.left[snapshot.path(number)] = (
            f"{sizes[number] / 2**20:,.0f} MB, above the limit of {MAX_BYTES // 2**20} MB in all"
        )


# -- reasons -----------------------------------------------------------------------------------------------------------
_REASONS = (
    (r"_io\.", "an open file"),
    (r"'(async_)?generator'", "a generator"),
    (r"_thread\.|'(RLock|Condition)'", "a lock"),
    (r"'socket'", "a socket"),
    (r"'module'", "a module"),
    (r"'_queue\.", "a queue"),
    (r"sqlite3|psycopg|Connection", "a connection"),
)


def pickling_reason(problem: Exception) -> str:
    """Why something cannot be pickled, in a few words."""
    if isinstance(problem, WorkerOnlyError):
        return f"{problem} of the worker"
    text = str(problem)
    for pattern, words in _REASONS:
        if isinstance(problem, TypeError) and re.search(pattern, text):
            return words
    local = re.search(r"local object '?([^']+?)'?$", text)
    if local is not None:
        outer, _, inner = local[1].partition(".<locals>.")
        return f"`{inner}`, defined inside `{outer}`" if inner else text
    return text if isinstance(problem, pickle.PicklingError) else f"{type(problem).__name__}: {text}"


# -- in the notebook --------------------------------------------------------------------------------------------------


SHOWN = 5  # names in one line
DURING = "changed in the notebook during the run"
ELSEWHERE = "it has another object in the notebook since the run began; the one from before was updated"


@dataclass
class StagedChanges:
    """Changes that were read but not yet applied. `names`: what a cell assigned; `left`: what is not updated, by name,
    with the reason."""

    snapshot: StateSnapshot
    adapter: NotebookState
    contents: dict[int, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: Any = None
    settings: SettingChanges | None = None
    gradients: dict[int, Any] = field(default_factory=dict)
    tables: dict[int, Any] = field(default_factory=dict)
    weights: dict[int, Any] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        names = dict.fromkeys(self.snapshot.root(number) for number in (*self.contents, *self.tables))
        return [name for name in names if self.left.get(name) != ELSEWHERE]

    def keep_notebook_changes(self, models: Collection[str] = ()) -> None:
        """After a run in the background: do not overwrite what the notebook changed meanwhile. `models`: those of which
        it changed weights."""
        of_these = {number for (model, _), number in self.snapshot.modules.items() if model in models}
        self.tables = {number: content for number, content in self.tables.items() if number not in of_these}
        of_these = {number for (model, _), number in self.snapshot.slots.items() if model in models}
        self.weights = {number: content for number, content in self.weights.items() if number not in of_these}
        for number in list(self.contents):
            node = self.snapshot.nodes[number]
            if node.kind is not None and node.kind.changed(node.value, node.mark):
                del self.contents[number]
                self.left[self.snapshot.path(number)] = DURING
            elif path := self._given_away(number):
                self.left[path] = ELSEWHERE
        for number in list(self.tables):
            node = self.snapshot.nodes[number]
            if self.adapter.changed_tables(node.value, self.snapshot.tables[number]) is not None:
                del self.tables[number]
                self.left[self.snapshot.path(number)] = DURING
        for number in list(self.gradients):
            now = self.adapter.gradient(self.snapshot.nodes[number].value)
            if self.snapshot.gradients.get(number) != (None if now is None else (id(now), now._version)):
                del self.gradients[number]
        if self.adapter.random_changes(self.snapshot.random) is not None:
            self.random = None

    def _given_away(self, number: int) -> str:
        """The name, or the attribute of a module, through which the object was reached, if the notebook has another
        object there now, or none; else ""."""
        while number >= 0:
            node = self.snapshot.nodes[number]
            how, key = node.label
            above = self.snapshot.nodes[node.above].value if node.above >= 0 else None
            if how == "name" and self.snapshot.main.get(key) is node.value:
                return "" if vars(sys.modules["__main__"]).get(key) is node.value else str(key)
            if how == "attribute" and isinstance(above, types.ModuleType):
                return "" if vars(above).get(key) is node.value else self.snapshot.path(number)
            number = node.above
        return ""

    def apply(self) -> Callable[[], None]:
        """Change the objects. Returns a function that undoes all changes; after an error they are undone."""
        undo: list[Callable[[], None]] = []

        def back() -> None:
            while undo:
                undo.pop()()

        try:
            for number, content in self.tables.items():
                undo.append(self.adapter.set_tables(self.snapshot.nodes[number].value, content))
            for number, content in self.weights.items():
                undo.append(self.adapter.put_weight(self.snapshot.nodes[number].value, content))
            for number, content in self.contents.items():
                node = self.snapshot.nodes[number]
                assert node.kind is not None
                undo.append(node.kind.put(node.value, content))
            if self.random is not None:
                undo.append(self.adapter.set_random_state(self.random))
            if self.settings is not None:
                undo.append(settings.apply(self.settings, self.left))
            self._finish()
        except BaseException:
            back()
            raise
        return back

    def apply_gradients(self) -> None:
        """After the weights are loaded, which have their shapes then."""
        for number, gradient in self.gradients.items():
            try:
                self.adapter.set_gradient(self.snapshot.nodes[number].value, gradient)
            except Exception as error:  # the tensor has another shape or type here; the rest is loaded
                self.left[f"{self.snapshot.path(number)}.grad"] = str(error)

    def _finish(self) -> None:
        """Complete what the worker could only describe. What cannot be is named; no name of the cell is set to it."""
        for value, why in self.adapter.finish(node.value for node in self.snapshot.nodes):
            names = [name for name, item in self.names.items() if item is value]
            for name in names:
                del self.names[name]
            self.left.update(dict.fromkeys(names or [type(value).__name__], f"it could not be created here: {why}"))


def stage(snapshot: StateSnapshot, adapter: NotebookState, folder: Path) -> StagedChanges:
    """Read what rank 0 wrote, without changing anything."""
    adapter.begin()
    if not (folder / STATE).exists():
        return StagedChanges(snapshot, adapter)
    written, ends, positions, inside, (lists, left, random, changed) = pickle.loads(read_record(folder / STATE))
    keys = [key for one in lists for key in one]
    with open_record(folder / BLOBS) as file:

        def blob(number: int) -> bytearray:
            start, size = positions[number]
            content = bytearray(size)
            file.seek(start)
            file.readinto(content)
            return content

        buffers = [blob(number) for number in inside]
        found, problems = load_entries(written, ends, buffers, snapshot, adapter, blob)
    for at, error in problems.items():  # a missing class, or an object's own code
        path = keys[at] if isinstance(keys[at], str) else snapshot.path(keys[at])
        left[path] = f"it could not be loaded in the notebook: {type(error).__name__}: {error}"
    loaded = enumerate(keys)
    contents, assigned, gradients, tables, weights = [
        {key: found[at] for at, key in itertools.islice(loaded, len(one)) if at in found} for one in lists
    ]
    return StagedChanges(snapshot, adapter, contents, assigned, left, random, changed, gradients, tables, weights)


def rank_differences(snapshot: StateSnapshot, sums: Sequence[Mapping[int, int] | None]) -> str:
    """A line that names what differs between the ranks; "" if nothing does."""
    known = [one for one in sums if one is not None]
    numbers = {number for one in known for number in one}
    differing = [n for n in sorted(numbers) if len({one.get(n) for one in known}) > 1]
    names = list(dict.fromkeys(snapshot.root(number) for number in differing if not snapshot.nodes[number].quiet))
    if len(known) < 2 or not names:
        return ""
    ranks = "Ranks 0 and 1" if len(known) == 2 else f"The {len(known)} ranks"
    shown = ", ".join(f"`{name}`" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{ranks} differ in {shown}{more}: the notebook has the values of rank 0."


def unchanged_text(left: Mapping[str, str], output: str) -> str:
    """What is not updated, with the reasons, in one line. `output`: the name of the result."""
    shown = [f"`{name}` ({why})" for name, why in list(left.items())[:SHOWN]]
    more = f" and {len(left) - SHOWN} more ({output}.left)" if len(left) > SHOWN else ""
    return ", ".join(shown) + more
