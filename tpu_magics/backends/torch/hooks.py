"""What the observers of torch_xla and TorchTPU share: wrapping functions of torch and accelerate, logged values, and
device-to-host reads by source line."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.observe.measurements import LoggedValues
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.recreate import TRACKER
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

if TYPE_CHECKING:
    from tpu_magics.backends.observe.observer import Observer

# Methods of a tensor that read it on the host, and functions of torch that do (measured with torch_xla 2.9). Where an
# operation needs a value for the shape of its result, or takes a number and is given a tensor, no read is recorded, but
# the graph that it runs.
READS = (
    *("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__array__"),
    *("__complex__", "__repr__", "__format__", "allclose", "equal", "is_nonzero"),
)
READ_FUNCTIONS = ("allclose", "equal", "is_nonzero")

_SITES = 100  # of each kind that are recorded
_READ_TEXT = "The host reads a value in the middle of a step (device-to-host read). This splits the step's graph."
_OP_TEXT = (
    "This line splits the step's graph: an operation needs a number or a shape that depends on values, or an operation "
    "that XLA does not support runs on the host."
)
_READ_FIX = (
    "Read it after the step's sync, or every N steps. To log values, use tpu_magics.log(): it reads after the sync."
)
_UNSYNCED_TEXT = (
    "The graph of this read holds all steps before it, because no torch_xla.sync() ends the steps of this loop: it "
    "grows with each step."
)
_UNSYNCED_FIX = "Call torch_xla.sync() after optimizer.step(), in the loop, and read after it."
_OPTIMIZER_TEXT = "{} reads values in its step (device-to-host reads). Each read splits the step's graph."
OPTIMIZER_FIX = "{} compiles many graphs on XLA. Use an optimizer that reads no values in its step: AdamW or SGD."
_OP_FIX = "Keep the full shape (multiply by the mask, divide by its sum), or use an operation that XLA supports."


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace an attribute by `make(attribute)`. Returns how to undo that."""
    original = getattr(owner, name)
    own = name in vars(owner)
    setattr(owner, name, make(original))

    def undo() -> None:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    return undo


def as_original(wrapper: Any, original: Any) -> Any:
    """A wrapper for which torch.jit, which compiles the text of functions, takes the original (torch 2.8 and 2.9,
    jit/_script.py and jit/_builtins.py)."""
    if isinstance(original, types.BuiltinFunctionType):
        from torch.jit import _builtins

        _builtins._register_builtin(wrapper, f"aten::{original.__name__}")
    else:
        wrapper.__script_if_tracing_wrapper, wrapper.__original_fn = True, original
    return wrapper


def reads(make: Callable[[Any], Any]) -> Callable[[], None]:
    """Wrap what reads a tensor on the host."""
    import torch

    methods = [replace(torch.Tensor, name, make) for name in READS]
    functions = [
        replace(torch, name, lambda original: as_original(make(original), original)) for name in READ_FUNCTIONS
    ]
    return all_of([*methods, *functions])


def all_of(undo: list[Callable[[], None]]) -> Callable[[], None]:
    def undo_all() -> None:
        for one in reversed(undo):
            one()

    return undo_all


# -- loaders, and accelerate.log --------------------------------------------------------------------------------------
def passes(observer: Any, loaders: Iterable[Any]) -> Callable[[], None]:
    """Tell the observer of each pass over a loader of these classes that begins."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            observer.on_loader(sys._getframe(1), loader)
            return original(loader)

        return iterate

    return all_of([replace(one, "__iter__", make) for one in loaders])


def host_loaders(observer: Any, before: Callable[[], object] | None = None) -> Callable[[], None]:
    """Tell the observer of each batch of a DataLoader. `before`: called before it is fetched."""
    from torch.utils.data import dataloader

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            if before is not None:
                before()
            batch = original(iterator)
            observer.on_host_batch(iterator, batch)
            return batch

        return next_batch

    return replace(dataloader._BaseDataLoaderIter, "__next__", make)


def accelerate_tracker(observer: Observer[Any]) -> Callable[[], None]:
    """Send `accelerator.log(...)` to the run's records through an accelerate tracker (1.15)."""
    waiting = PostImport()
    undo = [waiting.remove]
    waiting.when_imported("accelerate.accelerator", lambda module: undo.append(_track(module.Accelerator, observer)))
    return all_of(undo)


def _track(accelerator: Any, observer: Observer[Any]) -> Callable[[], None]:
    RunTracker = _run_tracker()

    def start(original: Any) -> Any:
        @functools.wraps(original)
        def with_tracker(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.trackers = [*getattr(self, "trackers", []), RunTracker(observer.log)]

        return with_tracker

    def init_trackers(original: Any) -> Any:
        @functools.wraps(original)
        def keep_tracker(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not any(isinstance(tracker, RunTracker) for tracker in self.trackers):
                self.trackers.append(RunTracker(observer.log))

        return keep_tracker

    return all_of([replace(accelerator, "__init__", start), replace(accelerator, "init_trackers", init_trackers)])


def _run_tracker() -> Any:
    """An accelerate tracker that passes the values of `accelerator.log(...)` to the run's records."""
    from accelerate.tracking import GeneralTracker

    class RunTracker(GeneralTracker):
        name = TRACKER
        requires_logging_directory = False

        def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
            super().__init__()
            self._record = record

        @property
        def tracker(self) -> None:
            """accelerate reads the wrapped tracker; there is none."""
            return None

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
            """Called by accelerate on the main process."""
            self._record(values)

        def __reduce__(self) -> Any:
            return _tracker_of_a_copy, ()

    return RunTracker


def _tracker_of_a_copy() -> Any:
    """That of a pickled or copied accelerator: nothing is recorded twice."""
    return _run_tracker()(lambda _values: None)


# -- logged values ----------------------------------------------------------------------------------------------------
class TorchLoggedValues(LoggedValues):
    """The logged values of one rank. `on_type`: called with the dtype of each logged tensor."""

    def __init__(self, writer: EventWriter, on_type: Callable[[str], None]) -> None:
        super().__init__(writer)
        self.on_type = on_type

    def waits(self, value: Any) -> bool:
        """Whether it is on a device."""
        device = getattr(value, "device", None)
        found = device is not None and getattr(device, "type", "cpu") not in ("cpu", "meta")
        if found:
            self.on_type(str(value.dtype).removeprefix("torch."))
        return found

    def fetch(self, value: Any) -> Any:
        """The value in host memory. After the sync, reading it splits no graph."""
        return value.detach().cpu()


# -- device-to-host reads ---------------------------------------------------------------------------------------------


@dataclass
class _Count:
    site: events.Site
    count: int = 0
    seconds: float = 0.0
    written: int = 0
    by_op: bool = False
    unsynced: bool = False
    optimizer: str = ""


class ReadCounter:
    """The reads of one rank by source line: how often, how long the host waited, and whether they split a graph."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self.cutting: dict[int, _Count] = {}
        self.waiting: dict[int, _Count] = {}
        self.seconds = 0.0

    def add(
        self,
        site: events.Site,
        seconds: float,
        cut: bool,
        by_op: bool = False,
        count: int = 1,
        unsynced: bool | None = None,
        optimizer: str = "",
    ) -> None:
        """A read at `site`; `by_op`: not by the user's code, but by an operation that needs the value; `unsynced`: it
        ran steps that nothing else ends (None: as known before); `optimizer`: the class of the one that read in its
        step."""
        self.seconds += seconds
        kind = self.cutting if cut else self.waiting
        one = kind.get(site.id)
        if one is None:
            if len(kind) >= _SITES:
                return
            one = kind[site.id] = _Count(site, by_op=by_op, optimizer=optimizer)
        one.count += count
        if unsynced is not None:
            one.unsynced = unsynced
        one.seconds += seconds
        if one.count >= 2 * one.written:  # each record replaces the one before: a dozen for a thousand reads
            self._write(one, cut)

    def flush(self) -> None:
        """Write the current counts."""
        for kind, cut in ((self.cutting, True), (self.waiting, False)):
            for one in kind.values():
                if one.count != one.written:
                    self._write(one, cut)

    def _write(self, one: _Count, cut: bool) -> None:
        one.written = one.count
        fields = {"site": one.site, "count": one.count, "seconds": round(one.seconds, 4), "code": one.site.code}
        if cut:
            text, fix = (_OP_TEXT, _OP_FIX) if one.by_op else (_READ_TEXT, _READ_FIX)
            if one.unsynced:
                text, fix = _UNSYNCED_TEXT, _UNSYNCED_FIX
            if one.optimizer:
                text, fix = _OPTIMIZER_TEXT.format(one.optimizer), OPTIMIZER_FIX.format(one.optimizer)
            self.writer.record(events.Transfer, **fields, text=text, fix=fix)
        else:
            self.writer.record(events.Read, **fields)
