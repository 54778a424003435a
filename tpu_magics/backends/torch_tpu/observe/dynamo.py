"""What torch.compile(backend="tpu") compiles, as Dynamo and torch_tpu tell it (torch 2.15.0, torch_tpu 0.2.0).

Dynamo calls back when a frame's compile starts and ends, with the frame's number and how often it was compiled ("0/1"),
and again when the backward pass of it is compiled, in autograd's thread, at the first backward(). torch_tpu's backend
is called in between with the graph, and gives StableHLO to a callback. Why a frame was compiled again is in Dynamo's
metrics, which it writes after the end: a compile is handed on at the next hook.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar, cast

from tpu_magics.backends.observe.sites import StackLine, outwards
from tpu_magics.backends.torch.hooks import all_of, replace
from tpu_magics.runs.events import Input

KEPT = 64  # compiles whose texts are kept until their backward pass is compiled
_SOURCE_END = len("L['")
# How Dynamo names what a compiled module is called with.
_POSITION, _KEYWORD = re.compile(r"^args\[(\d+)\]"), re.compile(r"^kwargs\['(\w+)'\]")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class FrameCompile:
    """A compile of a frame. `number`: Dynamo's ("0/1"), which it has begun anew `resets` times; `stack`: what ran,
    innermost first; `misses`: of torch_tpu's cache before; `debug`: torch_tpu's texts, None if its backend was not
    called (nothing was compiled); `compiled`: whether XLA compiled it, and not an earlier process whose programs torch
    keeps on the disk; `guard`: the guard that failed; `function`: what was compiled."""

    number: str
    resets: int
    backward: bool
    stack: tuple[StackLine, ...]
    started: float
    misses: int
    debug: Any = None
    inputs: tuple[Input, ...] = ()
    seconds: float = 0.0
    compiled: bool = False
    guard: str = ""
    function: str = ""

    @property
    def place(self) -> tuple[int, str, bool]:
        """The frame, and whether this is its backward pass: the same for all its compiles."""
        return self.resets, self.number.partition("/")[0], self.backward

    @property
    def stablehlo(self) -> str:
        """The text of the graph that was compiled; "" if it is not known."""
        kind = "backward" if self.backward else "forward"
        texts: Sequence[str] = getattr(self.debug, f"stablehlo_{kind}_text", ())
        return texts[-1] if texts else ""


@dataclass(frozen=True)
class GraphBreakSite:
    """A place where torch.compile splits a function. `reason`, `hint`: Dynamo's, a sentence each."""

    path: str
    line: int
    reason: str
    hint: str


def _contained(method: F) -> F:
    """Errors in it are told and end the listening; torch.compile, which calls it, goes on."""

    @functools.wraps(method)
    def call(self: DynamoCompiles, *args: Any) -> Any:
        if self.broken:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            self.broken = True
            self.compiling.clear()
            self.on_error(error)
            return None

    return cast(F, call)


@dataclass
class DynamoCompiles:
    """The compiles of this process since the last `take`. `misses`: reads torch_tpu's counter of compiles; `on_break`:
    called for each graph break, `on_error` for an error in here; `thread`: of the user's code; `resets`: how often
    torch.compiler.reset() has begun Dynamo's numbers anew."""

    misses: Callable[[], int]
    on_break: Callable[[GraphBreakSite], None]
    on_error: Callable[[Exception], None]
    thread: int = field(default_factory=threading.get_ident)
    compiling: list[FrameCompile] = field(default_factory=list)
    counted: int = 0  # of the misses, those of torch.compile
    resets: int = 0
    broken: bool = False
    _ended: list[FrameCompile] = field(default_factory=list)
    _described: list[FrameCompile] = field(default_factory=list)
    _debug: dict[str, Any] = field(default_factory=dict)
    _old: list[Any] = field(default_factory=list)  # Dynamo's metrics from before a reset

    def install(self) -> Callable[[], None]:
        """Listen; returns how to stop."""
        # Else torch.compile, in whose functions libraries call a hook or a process group, would compile those, too.
        import_module("torch._dynamo.trace_rules").add("tpu_magics")
        handler = import_module("torch._dynamo.callback").callback_handler
        backend = import_module("torch_tpu._internal.compile._backend").TpuBackend
        translator = import_module("torch._dynamo.symbolic_convert").InstructionTranslatorBase

        def listen() -> None:
            handler.register_start_callback(self._start)
            handler.register_end_callback(self._end)

        def listens_on(original: Any) -> Any:
            @functools.wraps(original)
            def clear() -> None:  # by torch.compiler.reset()
                original()
                self._reset()
                listen()

            return clear

        listen()
        return all_of(
            [
                lambda: handler.remove_start_callback(self._start),
                lambda: handler.remove_end_callback(self._end),
                replace(handler, "clear", listens_on),
                replace(backend, "__call__", self._backend),
                replace(translator, "log_graph_break", self._breaks),
            ]
        )

    def take(self, last: bool = False) -> list[FrameCompile]:
        """What was compiled and is described by now; `last`: also what is not."""
        self._describe()
        done, self._described = self._described, []
        if last:
            done, self._ended = [*done, *self._ended], []
        return done

    def given_up(self) -> list[tuple[str, str, int, str]]:
        """Functions that Dynamo does not compile any more, after too many recompiles: name, path, line, the last
        guard."""
        compiled = {_frame(one): one for one in _metrics() if one.co_name}  # what failed has no name of its own
        found = [one for one in _metrics() if "recompile limit" in str(one.fail_reason) and _frame(one) in compiled]
        named = [(compiled[_frame(one)], str(one.recompile_reason)) for one in found]
        return [(one.co_name, one.co_filename, one.co_firstlineno, guard) for one, guard in named]

    def _describe(self) -> None:
        """Add what Dynamo's metrics say; they keep the newest 64."""
        if not self._ended:
            return
        # A backward pass has metrics of its own, without a name, under the same number.
        fresh = [one for one in _metrics() if one.co_name and all(one is not old for old in self._old)]
        known = {str(one.compile_id): one for one in fresh}
        for one in self._ended:
            metrics = known.get(one.number)
            one.guard = str(getattr(metrics, "recompile_reason", None) or "")
            one.function = str(getattr(metrics, "co_name", None) or "")
        self._described += [one for one in self._ended if one.backward or one.number in known]
        self._ended = [one for one in self._ended if not one.backward and one.number not in known]

    # -- what Dynamo calls ----------------------------------------------------------------------------------------
    @_contained
    def _reset(self) -> None:
        self._describe()
        self._described += self._ended
        self._ended = []
        self._debug.clear()
        self._old = list(_metrics())
        self.resets += 1

    @_contained
    def _start(self, args: Any) -> None:
        self._describe()
        backward = args.callback_trigger.name == "LAZY_BACKWARD"
        frame = sys._getframe(2) if threading.get_ident() == self.thread else sys._current_frames().get(self.thread)
        stack = tuple((one.f_code.co_name, one.f_code.co_filename, one.f_lineno) for one in outwards(frame))
        debug = self._debug.get(args.compile_id) if backward else None
        begun = FrameCompile(args.compile_id, self.resets, backward, stack, time.perf_counter(), self.misses(), debug)
        self.compiling.append(begun)

    @_contained
    def _end(self, args: Any) -> None:
        if all(one.number != args.compile_id for one in self.compiling):
            return
        one = self.compiling.pop()
        while one.number != args.compile_id:  # one whose end was not told
            one = self.compiling.pop()
        one.seconds = time.perf_counter() - one.started
        new = self.misses() - one.misses
        self.counted += new
        one.compiled = new > 0
        if one.backward or one.debug is not None:
            self._ended.append(one)

    @_contained
    def _compiled(self, one: FrameCompile, debug: Any) -> None:
        one.debug = self._debug[one.number] = debug
        if len(self._debug) > KEPT:
            self._debug.pop(next(iter(self._debug)))

    @_contained
    def _graph(self, one: FrameCompile, graph: Any, example_inputs: Sequence[Any]) -> None:
        one.inputs = _inputs(graph, example_inputs)

    @_contained
    def _broken_at(self, reason: str, exc: Any) -> None:
        stack = list(getattr(exc, "real_stack", None) or ())
        if stack:
            self.on_break(GraphBreakSite(stack[-1].filename, int(stack[-1].lineno or 0), *_explained(reason)))

    def _backend(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(backend: Any, graph: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
            if not self.compiling:
                return original(backend, graph, example_inputs, **kwargs)
            one = self.compiling[-1]
            options = dict(kwargs.get("options") or {})
            theirs = options.get("debug_callback")

            def keep(debug: Any) -> None:
                self._compiled(one, debug)
                if theirs is not None:
                    theirs(debug)

            self._graph(one, graph, example_inputs)
            kwargs["options"] = {**options, "debug_callback": keep}
            return original(backend, graph, example_inputs, **kwargs)

        return call

    def _breaks(self, original: Any) -> Any:
        @functools.wraps(original)
        def log_graph_break(translator: Any, code: Any, reason: str, exc: Any, *args: Any, **kwargs: Any) -> Any:
            self._broken_at(reason, exc)
            return original(translator, code, reason, exc, *args, **kwargs)

        return log_graph_break


def _frame(metrics: Any) -> str:
    return str(metrics.compile_id).partition("/")[0]


def _metrics() -> Any:
    return import_module("torch._dynamo.utils")._compilation_metrics


def _explained(reason: str) -> tuple[str, str]:
    """The first line that says more than what was traced, and the first hint."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    lines = lines[len(lines) > 1 and lines[0].startswith("Encountered graph break") :]
    hints = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")]
    return (lines[0] if lines else ""), (hints[0] if hints else "")


def _inputs(graph: Any, example_inputs: Sequence[Any]) -> tuple[Input, ...]:
    """What the function was called with, by the names that the user sees; parameters and buffers are left out."""
    import torch

    found = []
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(nodes, example_inputs, strict=False):
        source = str(getattr(getattr(node, "_dynamo_source", None), "name", "") or node.name)
        if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter) or "._modules" in source:
            continue
        if "._parameters" in source or "._buffers" in source or not source.startswith("L['"):
            continue
        name = _KEYWORD.sub(r"\1", _POSITION.sub(r"input \1", source[_SOURCE_END:].replace("']", "", 1)))
        found.append(Input(name, tuple(map(_size, value.shape)), str(value.dtype).removeprefix("torch.")))
    return tuple(found)


def _size(size: Any) -> int:
    """The size of a dimension. That of a dynamic one is looked up: int() would fix it for torch.compile."""
    return size if isinstance(size, int) else int(size.node.hint)
