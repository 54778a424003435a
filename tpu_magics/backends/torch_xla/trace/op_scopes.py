"""What each operation of a traced step belongs to: a module of the model, forward or backward, or an optimizer; and for
the backward pass, which no Python runs, the user's line of its forward operation.

A lazy framework names operations by the scopes that are open when they are made ("tpu7.1/aten__mm"). Here a scope is a
place in the list `OpScopes.known`. Modules and optimizers open theirs in torch's global hooks. Each node of autograd
opens one while it runs: the nodes of a call of torch's get the module and the line of that call.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from tpu_magics.backends.lowered import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE, OpScope, SourceLine

_NAME = re.compile(r"\btpu_magics_(\d+)")
_MARK = "tpu_magics"  # in the metadata of a node of autograd
WRAPPED = "_orig_module."  # in which torch_xla's FSDP v2 keeps the wrapped module


class _Scope:
    """An open scope. After an error in a backward pass nothing closes that of its node: it is destroyed in another
    thread, where it must not be closed, and so is never destroyed."""

    def __init__(self, scope: Any) -> None:
        self._scope, self._thread = scope, threading.get_ident()

    def close(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None and threading.get_ident() != self._thread:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(scope))

    __del__ = close


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


@dataclass
class _Open:
    """A module that runs: its path, the user's line that called it, and its scope."""

    module: Any
    path: str
    place: SourceLine | None
    scope: _Scope


class OpScopes:
    """The scopes of one process. `push`: opens a scope of that name in this thread, until what it returns is destroyed,
    which has to be in the same thread; `place`: the user's line of a frame; `models`: those that are known so far, of
    which the step may call parts. Create and install it in the thread that runs the step."""

    def __init__(
        self,
        push: Callable[[str], Any],
        place: Callable[[FrameType], SourceLine | None],
        models: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self.push = push
        self.place = place
        self.models = models
        self.known: list[tuple[OpScope, SourceLine | None]] = []
        self._numbers: dict[tuple[OpScope, SourceLine | None], int] = {}  # places in it
        self._open: list[_Open] = []
        self._paths: dict[int, tuple[Any, str]] = {}  # by id(): the module, so that it lives, and its path
        self._roots: list[str] = []  # the classes of models
        self._lines: dict[str, SourceLine | None] = {}  # of a module: the line that called it last
        self._steps: list[_Scope] = []
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Until the process ends."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        register_optimizer_step_pre_hook(self._begin_step)
        register_optimizer_step_post_hook(self._end_step)
        _Calls(self).__enter__()

    def of(self, name: str) -> tuple[OpScope, SourceLine | None]:
        """What an operation's name belongs to, and the line if the scope knows one."""
        found = _NAME.findall(name)
        return self.known[int(found[-1])] if found else (OpScope(), None)

    @property
    def module(self) -> str:
        """The path of the module that runs; "" outside of modules."""
        return self._open[-1].path if self._open else ""

    def _scope(self, module: str, phase: str, place: SourceLine | None) -> _Scope:
        scope = OpScope(module, phase), place
        number = self._numbers.setdefault(scope, len(self.known))
        if number == len(self.known):
            self.known.append(scope)
        return _Scope(self.push(f"tpu_magics_{number}"))

    def _is_here(self) -> bool:
        """Whether this thread runs the step: loaders have threads of their own, with modules that transform data."""
        return threading.get_ident() == self._thread or _in_backward()

    # -- modules ----------------------------------------------------------------------------------------------------
    def _enter(self, module: Any, _args: Any) -> None:
        if not self._is_here():
            return
        path, again = self._path(module), _in_backward()
        place = self._lines.get(path) if again else self.place(sys._getframe(1))
        if not again:
            self._lines[path] = place
        self._open.append(_Open(module, path, place, self._scope(path, RECOMPUTE if again else FORWARD, place)))

    def _leave(self, module: Any, _args: Any, result: Any) -> None:
        while self._open and self._is_here():
            left = self._open.pop()
            left.scope.close()
            if left.module is module:
                for node in _nodes(result):
                    self._mark(node, left.path, left.place)
                return

    def _path(self, module: Any) -> str:
        if id(module) not in self._paths and self._open:
            self._name(module, f"{self._open[-1].path}.{type(module).__name__}")
        elif id(module) not in self._paths:
            known = [one for one in self.models() if id(one) not in self._paths]
            inside = {id(part) for one in known for part in one.modules() if part is not one}
            self._name_models([one for one in known if id(one) not in inside])
            if any(id(part) not in self._paths for part in module.modules() if part is not module):
                self._name_models([module])
            self._paths.setdefault(id(module), (module, type(module).__name__))  # of parts that have a name
        return self._paths[id(module)][1]

    def _name_models(self, roots: Sequence[Any]) -> None:
        """Name several models, with their labels before the names of their parts."""
        several = len(roots) + len(self._roots) > 1
        for root in roots:
            self._name(root, self._label(root) if several else "")
            self._roots.append(type(root).__name__)

    def _label(self, root: Any) -> str:
        """Its class, with a number where there are several."""
        name = type(root).__name__
        again = self._roots.count(name)
        return f"{name}_{again + 1}" if again else name

    def _name(self, root: Any, prefix: str) -> None:
        for name, part in root.named_modules():
            path = ".".join(one for one in (prefix, name.replace(WRAPPED, "")) if one)
            self._paths.setdefault(id(part), (part, path or type(root).__name__))

    # -- optimizers -------------------------------------------------------------------------------------------------
    def _begin_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._close_steps()  # one that raised an error has no end
            self._steps.append(self._scope(type(optimizer).__name__, OPTIMIZER, self.place(sys._getframe(1))))

    def _end_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._close_steps()

    def _close_steps(self) -> None:
        while self._steps:
            self._steps.pop().close()

    # -- autograd ---------------------------------------------------------------------------------------------------
    def called(self, result: Any, frame: FrameType) -> None:
        """A function of torch's has been called by that frame, with this result."""
        new = [node for node in _nodes(result) if _MARK not in node.metadata]
        if new:
            place = self.place(frame)
            for node in new:
                self._mark(node, self.module, place)

    def _mark(self, node: Any, path: str, place: SourceLine | None) -> None:
        """This node and those before it that have no mark: they are of the same call."""
        left = [node]
        while left:
            one = left.pop()
            if one is not None and _MARK not in one.metadata:
                one.metadata[_MARK] = True
                self._hook(one, path, place)
                left += [before for before, _ in one.next_functions]

    def _hook(self, node: Any, path: str, place: SourceLine | None) -> None:
        opened: list[_Scope] = []

        def close(_inputs: Any, _outputs: Any) -> None:
            while opened:
                opened.pop().close()

        node.register_prehook(lambda _gradients: opened.append(self._scope(path, BACKWARD, place)))
        node.register_hook(close)


class _Calls(TorchFunctionMode):
    """Follows the calls of torch's functions."""

    def __init__(self, scopes: OpScopes) -> None:
        super().__init__()
        self.scopes = scopes

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.backward:
            self.scopes.called(args[0], sys._getframe(1))  # made by an autograd.Function, whose calls are not seen here
        result = function(*args, **kwargs or {})
        if torch.is_grad_enabled():
            self.scopes.called(result, sys._getframe(1))
        return result


def _nodes(value: Any) -> Iterator[Any]:
    """The nodes of autograd that made a result: a tensor, or a tuple, list or dict of them."""
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(RuntimeError):  # of a view whose base was changed without autograd
            if value.grad_fn is not None:
                yield value.grad_fn
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _nodes(one)
