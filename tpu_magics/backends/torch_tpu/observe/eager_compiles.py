"""Which operations outside of torch.compile were compiled, in the first steps of a run, and where.

torch_tpu 0.2.0 only counts: its counter is read after each operation that is new, once the device has run it. Shapes
and dtypes make a new one; Python numbers do not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from tpu_magics.backends.torch_tpu.eager import EagerOperations, can_listen, tensors
from tpu_magics.errors import plural
from tpu_magics.runs.events import Site

_EXECUTION = "torch_tpu._internal.execution_mode.execution_mode_impl"  # torch.tpu's own functions warn
STEPS = 3  # in which they are named
_BATCHES = 64  # after which they are not any more, whether there were steps or not
_LINES, _NAMES = 3, 3  # of a message


class EagerCompiles:
    """Eager compiles of this process. `count`: reads how many there were; `site_of`: the user's line of a stack;
    `on_error`: an error in here, which ends the naming."""

    def __init__(
        self,
        count: Callable[[], int],
        site_of: Callable[[FrameType | None], Site],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.count = count
        self.site_of = site_of
        self.on_error = on_error
        self.thread = threading.get_ident()
        self.paused = False
        self.fused = False  # operations wait for others, to be one program
        self.by_line: dict[tuple[str, int], dict[str, list[str]]] = {}  # where -> operation -> its tensors, in order
        self._known: set[Any] = set()
        self._before = 0
        self._batches = 0
        self._mode: EagerOperations | None = None

    def begin(self) -> None:
        """Listen, in the thread that calls this."""
        self._before = self.count()
        if can_listen():
            self._mode = EagerOperations(self._heard)
            self._mode.__enter__()

    def end(self) -> None:
        """Stop; later, while the user's own mode is the innermost one."""
        if self._mode is not None and _get_current_dispatch_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def on_batch(self) -> None:
        """A batch is fetched: a function without an optimizer has no steps."""
        self._batches += 1
        if self._batches == _BATCHES:
            self.end()

    def text(self) -> str:
        """The lines with most of them, and the operations: "line 3 of In [2]: 9 (add float32[4,8] and 2 other shapes,
        ...)"."""
        order = sorted(self.by_line.items(), key=lambda item: -_total(item[1]))
        return "; ".join(_described(*where, found) for where, found in order[:_LINES])

    def _heard(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if self.paused or self._mode is None:
            return
        try:
            self._name(operation, list(tensors([args, kwargs])), result)
        except Exception as error:
            self.paused = True
            self.on_error(error)

    def _name(self, operation: Any, given: Sequence[Any], result: Any) -> None:
        shaped = given or list(tensors(result))
        key = (operation, tuple((one.shape, one.dtype) for one in shaped))
        if not shaped or key in self._known:
            return
        mode: Any = import_module(_EXECUTION)
        if mode._get_eager_mode() == mode._EagerMode.DEFER_AND_FUSE:  # which to wait for would end
            self.fused = True
            return
        self._known.add(key)
        torch.accelerator.synchronize()
        now = self.count()
        new, self._before = now - self._before, now
        if new <= 0:
            return
        frame = sys._getframe(3) if threading.get_ident() == self.thread else sys._current_frames().get(self.thread)
        site = self.site_of(frame)
        name = operation.name().partition("::")[2].partition(".")[0]
        more = f" + {len(shaped) - 1} tensors" if len(shaped) > 1 else ""
        found = self.by_line.setdefault((site.path, site.line), {}).setdefault(name, [])
        found += [f"{_type(shaped[0])}{more}"] * new


def _described(path: str, line: int, found: Mapping[str, Sequence[str]]) -> str:
    names = [f"{name} {types[0]}{_others(len(types) - 1)}" for name, types in list(found.items())[:_NAMES]]
    names += ["..."] if len(found) > _NAMES else []
    return f"line {line} of {path}: {_total(found):,} ({', '.join(names)})"


def _others(count: int) -> str:
    return f" and {plural(count, 'other shape', '')}" if count else ""


def _total(found: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, found.values()))


def _type(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
