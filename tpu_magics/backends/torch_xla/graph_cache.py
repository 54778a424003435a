"""Keeps torch_xla's graph cache from running another graph's program, which returns wrong values without a word.

torch_xla 2.9.0 (pytorch/xla issue 8353) finds a compiled program by a hash of the pending operations and of the shapes
of their inputs. The hash does not tell which input stands where: `a * (a + b)` and `b * (a + b)` have one hash, and the
one that comes second gets the program of the first. Here graphs with one hash are compared as XLA reads them. A second
one gets a name of its own, which torch_xla mixes into the hash, so it is compiled and found separately.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tpu_magics.backends.torch.hooks import all_of, replace
from tpu_magics.backends.torch_xla.observe.hooks import before_dynamo
from tpu_magics.backends.torch_xla.trace import live_tensors
from tpu_magics.backends.torch_xla.trace.host_reads import KernelOverrides

# A variable that is part of every hash (xla_graph_executor.cpp, 2.9.0), and otherwise read with auto-sharding only.
# It is set before the runtime starts, and only changed later: other threads may be reading the environment then.
NAME = "XLA_AUTO_SPMD_MESH"
KEPT = "tpu_magics_graphs.txt"  # beside the persistent compile cache

# Comparing costs 10 to 40 microseconds for each operation. At each place the first graphs are compared; later ones as
# long as comparing took less than ALLOWED seconds of the CPU, or than this share of the time since the start.
FIRST = 8
ALLOWED = 1.0
SHARE = 0.005

_DEPTH = 8  # frames that make a place
_READS_COMPARED = 512  # of one graph at one place, without a sync
_PREVENTED = (
    " runs a graph that differs from an earlier one only in which input stands where. torch_xla would have returned "
    "the values of the earlier one (pytorch/xla issue 8353). tpu_magics compiled them separately, so the values are "
    "right. Outside of tpu_magics, read values after the step's sync."
)
_STOPPED = (
    "Graphs are no longer compared ({}), so torch_xla may return the values of another graph for one that is read "
    "before the step's sync (pytorch/xla issue 8353). Read values after the sync."
)

Place = tuple[int, ...]
Tell = Callable[[FrameType | None, str, str], None]


class GraphCache:
    """The graphs of one process. `kept`: the file in which the names outlive the process, beside the persistent compile
    cache, which would mix up the graphs of two runs otherwise."""

    def __init__(self, kept: Path | None = None) -> None:
        import torch_xla

        self.kept = kept
        self.graphs: dict[str, list[str]] = {}  # by hash: the first needs no name
        self._wirings: dict[tuple[str, str], str] = {}  # of graphs as they were written
        self.stopped = ""
        self.spent = 0.0
        self.began = time.perf_counter()
        self.before_compile: Callable[[], None] = lambda: None  # before torch.compile traces
        self._hash = torch_xla._XLAC._get_graph_hash
        self._tell: Tell | None = None
        self._untold: list[tuple[None, str, str]] = []
        self._told = False
        self._naming = threading.RLock()
        self._reading = threading.RLock()
        self._reads: dict[tuple[str, Place], int] = {}  # since the last sync
        self._most: dict[tuple[str, Place], int] = {}  # of these that were compared
        self._compared: Counter[tuple[str, Place]] = Counter()  # how often a graph was compared there, "" for a sync
        self._doubtful: set[Place] = set()  # syncs that are always compared
        self._read_kept()

    # -- what may run a graph ---------------------------------------------------------------------------------------
    def read(self, tensors: Iterable[Any], run: Callable[[], Any], always: bool = False) -> Any:
        """`run`, which computes these tensors. `always`: compare even a graph that is known at this place.

        One thread after the other: a kernel that Python calls keeps the interpreter's lock where torch_xla waits for
        the device's, and a thread that has the device's needs the interpreter's as soon as it has its values."""
        with self._reading:
            name = self._guarded(lambda: self._name_of_read(tensors, always))
            if not name:
                return run()
            with self._named(name):
                return run()

    def sync(self, device: str, run: Callable[[], Any]) -> Any:
        """`run`, which computes everything that is pending on the device ("": the default one)."""
        if self.stopped:
            return run()
        self._reads.clear()
        place = _place(_outside())
        if self._compared["", place] >= FIRST and place not in self._doubtful and not self._may_spend():
            before = _compiles()
            value = run()
            if _compiles() != before:
                del self._compared["", place]  # it runs other graphs now: the next ones are compared
            return value
        name = self._guarded(lambda: self._name_of_sync(device, place))
        if not name:
            return run()
        with self._named(name):
            return run()

    def _guarded(self, find: Callable[[], str]) -> str:
        """Our own errors must not reach the training."""
        if self.stopped:
            return ""
        try:
            return find()
        except Exception as error:
            self.stopped = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self._say(None, "graphs-not-compared", _STOPPED.format(self.stopped))
            return ""

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Graphs have this name in their hash."""
        with self._naming:
            before = os.environ.get(NAME)
            os.environ[NAME] = name
            try:
                yield
            finally:
                os.environ[NAME] = before or ""

    # -- what is compared -------------------------------------------------------------------------------------------
    def _name_of_read(self, tensors: Iterable[Any], always: bool) -> str:
        found = pending(tensors)
        if not found:
            return ""
        key = self._key(found)
        at = key, _place(_outside())
        number = self._reads[at] = self._reads.get(at, 0) + 1
        new = self._compared[at] < FIRST or self._most.get(at, 0) < number < _READS_COMPARED
        if not always and not new and len(self.graphs.get(key, ())) == 1 and not self._may_spend():
            return ""
        self._compared[at] += 1
        self._most[at] = max(number, self._most.get(at, 0))
        with self._timed():
            return self._name(found, key)

    def _name_of_sync(self, device: str, place: Place) -> str:
        with self._timed():
            device = device or _default_device()
            found = live_tensors.pending(one for one in live_tensors.tensors() if str(one.device) == device)
            if not found:
                return ""
            self._compared["", place] += 1
            key = self._key(found)
            name = self._name(found, key)
        if len(self.graphs[key]) > 1:
            self._doubtful.add(place)
        return name

    def _key(self, found: Sequence[Any]) -> str:
        return bytes(self._hash(list(found))).hex()

    def _name(self, found: Sequence[Any], key: str) -> str:
        """The name for the graph of these tensors: "" for the first of its hash."""
        known = self.graphs.setdefault(key, [])
        text = key, written(found)
        digest = self._wirings.get(text) or wiring(found)
        if digest not in known:
            if known and (wiring(found) != digest or _auto_sharding()):
                return ""  # it cannot be compared, or not be named
            known.append(digest)
            self._keep(key, digest)
        self._wirings[text] = digest
        if known[0] == digest:
            return ""
        if not self._told:
            self._told = True
            self._say(_outside(), "wrong-values-prevented", _PREVENTED)
        return digest

    def _may_spend(self) -> bool:
        return self.spent < ALLOWED or self.spent < SHARE * (time.perf_counter() - self.began)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.thread_time()
        try:
            yield
        finally:
            self.spent += time.thread_time() - started

    # -- what is told and kept --------------------------------------------------------------------------------------
    def tell(self, tell: Tell | None) -> None:
        """Call `tell` from now on, and for what has not been told yet."""
        self._tell = tell
        while tell is not None and self._untold:
            tell(*self._untold.pop(0))

    def _say(self, frame: FrameType | None, code: str, text: str) -> None:
        if self._tell is None:
            self._untold.append((None, code, text))  # a frame keeps its tensors alive
        else:
            self._tell(frame, code, text)

    def _read_kept(self) -> None:
        if self.kept is None:
            return
        with contextlib.suppress(OSError):
            for line in self.kept.read_text(encoding="ascii", errors="ignore").splitlines():
                key, _, digest = line.partition(" ")
                known = self.graphs.setdefault(key, [])
                if digest and digest not in known:
                    known.append(digest)

    def _keep(self, key: str, digest: str) -> None:
        if self.kept is not None:
            with contextlib.suppress(OSError), self.kept.open("a", encoding="ascii") as file:
                file.write(f"{key} {digest}\n")


# -- graphs -----------------------------------------------------------------------------------------------------------


def pending(tensors: Iterable[Any]) -> list[Any]:
    """The inner tensors of these whose values are not computed yet, as a read finds them: with a view up to date."""
    import torch

    found = []
    for one in tensors:
        if isinstance(one, torch.Tensor) and one.is_xla:
            if torch._is_functional_tensor(one):
                with torch._C._AutoDispatchBelowAutograd():  # torch 2.9.0: as in a read, which autograd does not see
                    torch._sync(one)
            found.append(live_tensors.inner(one))
    return live_tensors.pending(found) if found else []


def written(found: Sequence[Any]) -> str:
    """A digest of the graph of these inner tensors as it is written."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    return _digest(bytes(extension._get_xla_tensors_hlo_proto(list(found))))


def wiring(found: Sequence[Any]) -> str:
    """What tells the graph of these inner tensors from all others with its hash."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    return wiring_of(str(extension._get_xla_tensors_hlo(list(found))))


_NAME = re.compile(r"%[\w.\-]+")
_CHANGING = re.compile(r", (?:metadata=\{[^}]*\}|channel_id=\d+)")
_HEADER = re.compile(r"(?:ENTRY )?(%[\w.\-]+) .*\{$")


def wiring_of(text: str) -> str:
    """A digest of the text of a graph: of each result's operations down to the numbered inputs. Where an operation
    stands, its name, and whether an equal one is there twice make no difference."""
    computation = last = ""
    known: dict[str, str] = {}  # digests by name
    for line in text.splitlines():
        target, is_operation, operation = line.strip().partition(" = ")
        header = _HEADER.match(line)
        if header is not None:
            computation = header[1]
        elif is_operation and "%" in target:
            operation = _NAME.sub(lambda name: known.get(name[0], name[0]), _CHANGING.sub("", operation))
            last = known[target.removeprefix("ROOT ")] = _digest(operation.encode())
            if target.startswith("ROOT "):
                known[computation] = last
    return known.get(computation, last)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _outside() -> FrameType | None:
    """The frame that called this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> Place:
    """A frame and those that called it."""
    place: list[int] = []
    while frame is not None and len(place) < 2 * _DEPTH:
        place += id(frame.f_code), frame.f_lasti
        frame = frame.f_back
    return tuple(place)


def _compiles() -> int | None:
    import torch_xla

    found: int | None = torch_xla._XLAC._xla_counter_value("UncachedCompile")
    return found


def _default_device() -> str:
    import torch_xla

    return str(torch_xla.device())


def _auto_sharding() -> bool:
    import torch_xla

    return bool(torch_xla._XLAC._xla_get_auto_sharding())


# -- installing -------------------------------------------------------------------------------------------------------

# The ways from the device to the host: see trace/host_reads.py. A cast on the device is a `_to_copy` too, which a
# Python kernel would make several times slower: so the methods that lead to it are wrapped, as long as torch.compile
# does not trace through them (torch_xla 2.9.0: then casts are in its graphs).

active: list[GraphCache] = []  # of this process
Hook = Callable[[GraphCache, Any], Any]  # what stands in for a function


def guard(kept: Path | None = None) -> GraphCache:
    """Compare the graphs of this process, in all threads, until it ends. Only for workers."""
    import torch
    import torch_xla

    cache = GraphCache(kept)
    kernels = KernelOverrides()
    for name, kernel in (("_to_cpu", _to_cpu), ("copy_", _copy_)):
        _replace_kernel(cache, kernels, name, kernel)
    for name, hook in _EXTENSION.items():
        if hasattr(torch_xla._XLAC, name):
            replace(torch_xla._XLAC, name, functools.partial(hook, cache))
    undo = [replace(torch.Tensor, name, functools.partial(hook, cache)) for name, hook in _METHODS.items()]

    def before_compile() -> None:
        if undo:
            all_of(undo)()
            undo.clear()
            _replace_kernel(cache, kernels, "_to_copy", _to_copy)

    cache.before_compile = before_compile
    active[:] = [cache]
    return cache


@contextlib.contextmanager
def told(tell: Tell) -> Iterator[None]:
    """Until the block ends, `tell(frame, code, text)` is called for what the user should know of this; a text that
    begins with a blank lacks the place, which `frame` is in. Enter it after all others have wrapped methods of tensors:
    it may take ours off."""
    if not active:
        yield
        return
    cache = active[0]
    undo = before_dynamo(cache.before_compile)
    cache.tell(tell)
    try:
        yield
    finally:
        undo()
        cache.tell(None)


# -- operations of the dispatcher -------------------------------------------------------------------------------------
def _replace_kernel(cache: GraphCache, kernels: KernelOverrides, name: str, kernel: Callable[..., Any]) -> None:
    original: list[Any] = []

    def ours(keys: Any, *args: Any, **options: Any) -> Any:
        return kernel(cache, original[0], keys, *args, **options)

    original.append(kernels.replace(name, ours))


def _to_cpu(cache: GraphCache, original: Any, keys: Any, tensors: Sequence[Any]) -> Any:
    return cache.read(tensors, lambda: original(keys, tensors))


def _copy_(cache: GraphCache, original: Any, keys: Any, into: Any, tensor: Any, *args: Any, **options: Any) -> Any:
    if into.is_xla:
        return original(keys, into, tensor, *args, **options)
    return cache.read((tensor,), lambda: original(keys, into, tensor, *args, **options))


def _to_copy(cache: GraphCache, original: Any, keys: Any, tensor: Any, **options: Any) -> Any:
    if not _on_host(options.get("device")):
        return original(keys, tensor, **options)
    return cache.read((tensor,), lambda: original(keys, tensor, **options))


# -- methods of tensors -----------------------------------------------------------------------------------------------
def _reader(cache: GraphCache, original: Any) -> Any:
    @functools.wraps(original)
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_xla:
            return original(tensor, *args, **kwargs)
        return cache.read((tensor,), lambda: original(tensor, *args, **kwargs))

    return read


def _mover(cache: GraphCache, original: Any) -> Any:
    @functools.wraps(original)
    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_xla or not (_on_host(kwargs.get("device")) or any(map(_on_host, args))):
            return original(tensor, *args, **kwargs)
        return cache.read((tensor,), lambda: original(tensor, *args, **kwargs))

    return to


def _on_host(target: Any) -> bool:
    """Whether this argument asks for a tensor on the host: a device, a tensor there, a type of tensors there."""
    kind = getattr(target, "type", None)
    if isinstance(kind, str):
        return kind == "cpu"
    if isinstance(target, str):
        return target.startswith("cpu") or (target.startswith("torch.") and target.endswith("Tensor"))
    if isinstance(target, type):
        return True
    return getattr(target, "is_cpu", False) is True


_METHODS: dict[str, Hook] = {
    **dict.fromkeys(("cpu", "tolist"), _reader),
    **dict.fromkeys(("to", "type", "type_as"), _mover),
}


# -- functions of torch_xla's C++ module ------------------------------------------------------------------------------
def _whole(cache: GraphCache, original: Any) -> Any:
    @functools.wraps(original)
    def sync(*args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device", "")
        return cache.sync(device, lambda: original(*args, **kwargs))

    return sync


def _part(cache: GraphCache, original: Any) -> Any:
    @functools.wraps(original)
    def read(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return cache.read(tensors, lambda: original(tensors, *args, **kwargs))

    return read


def _each(_cache: GraphCache, original: Any) -> Any:
    """It computes one tensor after the other."""
    import torch_xla

    @functools.wraps(original)
    def read(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        for one in pending(tensors if isinstance(tensors, (list, tuple)) else (tensors,)):
            torch_xla._XLAC._xla_sync_multi([one], [], True, False)
        return original(tensors, *args, **kwargs)

    return read


def _captured(cache: GraphCache, original: Any) -> Any:
    """torch.compile(backend="openxla") takes a graph's hash once, and runs the program that it finds by it for good."""

    @functools.wraps(original)
    def of_graph(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return cache.read(tensors, lambda: original(tensors, *args, **kwargs), always=True)

    return of_graph


_EXTENSION: dict[str, Hook] = {
    **dict.fromkeys(("_xla_step_marker", "_xla_sync_live_tensors"), _whole),
    **dict.fromkeys(("_xla_sync_multi", "_xla_get_cpu_tensors"), _part),
    **dict.fromkeys(("_get_local_shards", "_to_dlpack", "_unsafe_buffer_pointer"), _each),
    **dict.fromkeys(("_get_graph_hash", "_xla_warm_up_cache"), _captured),
}
