"""Traces a training function of TorchTPU for a preflight: the StableHLO of what torch.compile compiles, and the
operations besides.

What torch.compile compiles is not compiled for this machine, and not run: a program gives zeros. Other operations run
on XLA:CPU. A step ends with a step of an optimizer. Names as in torch_tpu 0.2.0 and torch 2.15.0.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tpu_magics.backends import hlo
from tpu_magics.backends.base import StepLimit, TraceSpec
from tpu_magics.backends.hlo.stablehlo import parse_stablehlo
from tpu_magics.backends.lowered import (
    BACKWARD,
    EAGER,
    FORWARD,
    RECOMPUTE,
    HostRead,
    LoweredGraph,
    Operations,
    OpScope,
    SourceLine,
    write_trace,
)
from tpu_magics.backends.torch.hooks import replace as replaced
from tpu_magics.backends.torch.steady_state import SteadyStateDetector, TraceStepEvents
from tpu_magics.backends.torch_tpu.device import VERSIONS
from tpu_magics.backends.torch_tpu.eager import EagerOperations, can_listen, tensors
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.torch_tpu.observe.observer import TpuObserver

_LARGE = 2**20  # bytes of an activation that takes no memory here
_NAMED = re.compile(r'^(#loc\d+) = loc\("([^"]*)"\((#loc\d+)\)\)$', re.MULTILINE)
_CHAINED = re.compile(r"^(#loc\d+) = loc\(callsite\((#loc\d+) at (#loc\d+)\)\)$", re.MULTILINE)
_FILE = re.compile(r'^(#loc\d+) = loc\("(.*)":(\d+):\d+\)$', re.MULTILINE)
_PLACE = re.compile(r'File "(.+)", line (\d+)')
_SCOPE = "?tpu_magics="  # between a file and the number of a scope
# Dynamo's names of modules: L['model'].blocks.0, L['self']._modules['layers'][0]
_ROOT = re.compile(r"^L\['\w+'\]|^L__self__")
_INSIDE = re.compile(r"(?:\._modules)?\['?(\w+)'?\]")
_MODULE = re.compile(r"^module @\S+ ", re.MULTILINE)
_NO_STEP = (
    "NAME runs nothing on the TPU, so there is nothing to compile.",
    'No operation was on the device "tpu".',
    'Move the model and the batches to it (model.to("tpu")), and let the function make at least three steps.',
)
_ONE_BY_ONE = (
    "Operations outside of torch.compile ({:,} in a step) were not compiled: their memory is counted from the sizes of "
    "their tensors, their time from the bytes that they read and write. To compile the step as one program: "
    "step = torch.compile(step)."
)


@dataclass
class Program:
    """What torch.compile compiled once. `outputs`: what it gives, as torch's fake tensors; `saved`: from which of them
    on only its backward pass reads them; `beside`, `rows`: the most, over all its runs."""

    graph: LoweredGraph
    outputs: Sequence[Any] = ()
    saved: int = 0
    beside: int = 0
    rows: int | None = None


class LiveTensors:
    """Bytes of the tensors that are on the device now, also of those that only autograd holds."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._most = 0  # of the bytes now: some may be gone
        self.peak = 0

    def add(self, tensor: Any, size: int | None = None) -> None:
        """A tensor is there. `size`: its bytes, if it only stands for a larger one."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is None or known[0].expired():
            size = storage.nbytes() if size is None else size
            self._known[storage._cdata] = StorageWeakRef(storage), size
            self._most += size

    def bytes_of(self, found: Iterable[Any]) -> int:
        """Bytes of these tensors; those that share memory count once."""
        storages = {one.untyped_storage()._cdata: one for one in found}
        return sum(
            self._known[key][1] if key in self._known else one.untyped_storage().nbytes()
            for key, one in storages.items()
        )

    def now(self) -> int:
        """Bytes of all of them."""
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        self._most = sum(size for _, size in self._known.values())
        return self._most

    def watch(self) -> None:
        """Keep the peak."""
        if self._most > self.peak:
            self.peak = max(self.peak, self.now())


@dataclass
class _Step:
    """What has run since the last step: programs by their hash, in order, and the operations besides."""

    programs: list[str] = field(default_factory=list)
    count: int = 0
    moved: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    input: tuple[int, int] | None = None  # elements and rows of the largest one


class ProgramTracer:
    """The tracer of one worker; created in the thread that runs the user's function."""

    def __init__(self, tracing: TraceSpec, observer: TpuObserver) -> None:
        self.tracing = tracing
        self.observer = observer
        self.started = time.monotonic()
        self.programs: dict[str, Program] = {}
        self.operations: list[_Step] = []  # of each step so far
        self.events = TraceStepEvents()
        self.steady_state = SteadyStateDetector(tracing.steps)
        self.live = LiveTensors()
        self.step = _Step()
        self.steps: dict[str, list[str]] = {}  # a kind of step -> its programs
        self.latest = ""  # kind of step
        self.sequence: list[str] = []
        self.inputs: dict[int, tuple[Any, tuple[int, int]]] = {}  # storage; elements and rows
        self.models: list[Any] = []
        self.moving = 0  # models to the device
        self.reads: Counter[HostRead] = Counter()
        self.own = False  # what runs is ours
        self.scopes: dict[OpScope, int] = {}
        self.is_forward = True  # what torch.compile compiles now
        self.mode = EagerOperations(self.on_operation)

    def install(self) -> None:
        """From now on no program of torch.compile runs, until the process ends. Raises TpuMagicsError."""
        import torch._functorch.config as functorch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if not can_listen():
            raise TpuMagicsError(
                f"A preflight of TorchTPU does not work with torch {torch.__version__}.",
                "This version compiles nothing while its operations are followed.",
                f"Use versions that were tested: {VERSIONS}.",
            )
        functorch.enable_autograd_cache = False  # of compiled programs, on the disk
        import_module("torch._dynamo.backends.registry").lookup_backend("tpu")._enable_serialization = False
        compiler = import_module("torch_tpu._internal.compile.compiler")
        replaced(compiler.StaticCompiler, "_compile", self._compiling)
        replaced(compiler.tpu_torch_compile, "traverse_and_compile", _build)
        dynamic = import_module("torch_tpu._internal.compile.dynamic.dynamic_compiler")
        replaced(dynamic.DynamicCompiler, "__call__", _refuse_dynamic)
        interpreter = import_module("torch_tpu._internal.export.export").EagerLikeFxInterpreter
        replaced(interpreter, "_set_func_code_to_node_source_locations", self._named_lines)
        replaced(torch.nn.Module, "_apply", self._moving)
        self.events.install()
        register_optimizer_step_post_hook(torch._dynamo.disable(lambda *_: self.end_step()))
        self.mode.__enter__()

    def _moving(self, original: Any) -> Any:
        @functools.wraps(original)
        def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            if all(module is not one for one in self.models):
                self.models.append(module)
            self.moving += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self.moving -= 1

        return apply

    # -- programs ---------------------------------------------------------------------------------------------------
    def _compiling(self, original: Any) -> Any:
        @functools.wraps(original)
        def compile_(compiler: Any, graph: Any, inputs: Any, is_forward: bool = True, *args: Any, **kwargs: Any) -> Any:
            result = graph.graph.output_node().args[0]
            outputs = [one.meta.get("val") if isinstance(one, torch.fx.Node) else one for one in result]
            saved = _returned(len(outputs)) if is_forward else len(outputs)
            self.is_forward = is_forward
            made = original(compiler, graph, inputs, is_forward, *args, **kwargs)
            if text := getattr(made, "_mlir_text", None):
                program = self._program(FORWARD if is_forward else BACKWARD, text, outputs, saved)
                made._fast_runner = functools.partial(self.run, program)
            return made

        return compile_

    def _program(self, name: str, text: str, outputs: Sequence[Any], saved: int) -> Program:
        module, places, scopes = self._numbered(text)
        parsed = parse_stablehlo(module)
        graph = LoweredGraph(
            module=module.encode(),
            form="stablehlo",
            hash=hlo.fingerprint(parsed),
            replicas=self.tracing.world,
            site=next(iter(places.values()), None),
            steady=False,
            parameters=tuple(map(str, parsed.parameters)),
            places=places,
            scopes=scopes,
            name=name,
        )
        return self.programs.setdefault(graph.hash, Program(graph, outputs, saved))

    def _numbered(self, text: str) -> tuple[str, dict[int, SourceLine], dict[int, OpScope]]:
        """The module with numbers instead of lines, and the user's line and the scope of each number."""
        files = {name: (path, int(line)) for name, path, line in _FILE.findall(text)}
        chains: dict[str, tuple[str, ...]] = {name: (inner, outer) for name, inner, outer in _CHAINED.findall(text)}
        chains |= {name: (inner,) for name, _, inner in _NAMED.findall(text)}
        scopes = list(self.scopes)
        keys: dict[tuple[SourceLine | None, OpScope], int] = {}

        def number(found: re.Match[str]) -> str:
            place = self._place(found[3], files, chains, scopes)
            if place == (None, OpScope()):
                return f'{found[1]} = loc("{found[2]}")'
            return f'{found[1]} = loc("{found[2]}#{keys.setdefault(place, len(keys))}")'

        numbered = _NAMED.sub(number, text)
        return (
            _MODULE.sub("module @step ", _FILE.sub(r"\1 = loc(unknown)", numbered)),
            {key: line for (line, _), key in keys.items() if line is not None},
            {key: scope for (_, scope), key in keys.items() if scope.phase},
        )

    def _place(
        self,
        name: str,
        files: Mapping[str, tuple[str, int]],
        chains: Mapping[str, tuple[str, ...]],
        scopes: Sequence[OpScope],
    ) -> tuple[SourceLine | None, OpScope]:
        """The innermost line of the user's in a chain of calls, and the innermost scope."""
        left, scope = [name], OpScope()
        while left:
            one = left.pop()
            if one in files:
                path, mark, number = files[one][0].partition(_SCOPE)
                scope = scopes[int(number)] if mark and not scope.phase else scope
                if self.observer.sites.is_user_code(path):
                    site = self.observer.sites.of_line(path, files[one][1])
                    return SourceLine(site.path, site.line, site.code), scope
            left += reversed(chains.get(one, ()))
        return None, scope

    def _named_lines(self, _original: Any) -> Any:
        """torch_tpu gives the function that runs an operation the place of the user's line, so that it appears as such
        in the locations of StableHLO. It runs on its second line, so they would be one line off. Here the file has the
        number of the scope behind it, too."""

        def name(_interpreter: Any, function: Any, node: Any) -> None:
            places = _PLACE.findall(node.stack_trace or "")
            if places:
                own = [one for one in places if self.observer.sites.is_user_code(one[0])]
                (path, line), code = (own or places)[-1], function.__code__
                number = self.scopes.setdefault(_scope_of(node, self.is_forward), len(self.scopes))
                runs = max(last for *_, last in code.co_lines() if last) - code.co_firstlineno
                file = f"{path}{_SCOPE}{number}"
                function.__code__ = code.replace(co_filename=file, co_firstlineno=int(line) - runs)

        return name

    def run(self, program: Program, args: Sequence[Any]) -> Any:
        """Instead of running a program: its outputs, of zeros. Raises StepLimit."""
        given = list(tensors([list(one) if isinstance(one, (list, tuple)) else one for one in args]))
        key = program.graph.hash
        if self.step.programs[:1] == [key] and not self.events.has_backward:
            self.end_step()  # a function that does not train
        for one in given:
            self.live.add(one)
        program.beside = max(program.beside, self.live.now() - self.live.bytes_of(given))
        if program.graph.name == FORWARD and (largest := self._largest_input(given)) is not None:
            program.rows = largest[1]
        self._name(program, given)
        self.step.programs.append(key)
        self.own = True
        try:
            return [self._zeros(one, place >= program.saved) for place, one in enumerate(program.outputs)]
        finally:
            self.own = False

    def _zeros(self, value: Any, is_saved: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return int(value) if isinstance(value, torch.SymInt) else value
        size = math.prod(value.shape) * value.dtype.itemsize
        if is_saved and size >= _LARGE:
            made = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
        else:
            made = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        if made.device.type == "tpu":
            self.live.add(made, size)
        return made

    def _name(self, program: Program, given: Sequence[Any]) -> None:
        """Add the names of a model's weights to the program's parameters."""
        parameters = program.graph.parameters
        if any(" " in one for one in parameters):
            return
        inside = {id(part) for model in self.models for part in model.modules() if part is not model}
        named = {
            one.untyped_storage()._cdata: name
            for model in self.models
            if id(model) not in inside
            for name, one in (*model.named_parameters(), *model.named_buffers())
            if one.device.type == "tpu"
        }
        names = [named.get(one.untyped_storage()._cdata, "") for one in given] + [""] * len(parameters)
        full = tuple(f"{one} {name}".strip() for one, name in zip(parameters, names, strict=False))
        program.graph = replace(program.graph, parameters=full)

    # -- operations besides -----------------------------------------------------------------------------------------
    def on_operation(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operation outside of torch.compile has run."""
        if self.own or self.observer.dynamo.compiling:
            return
        given = list(tensors([args, kwargs]))
        made = list(tensors(args[0] if result is None and args else result))  # of many tensors in place: None
        if not made:
            return
        for one in made:
            self.live.add(one)
        self.live.watch()  # an operation in place gets the memory of its tensor (torch_tpu's default)
        if not given:  # from the host, or random
            for one in (one for one in made if one.dim() and not self.moving):
                storage = one.untyped_storage()
                self.inputs[storage._cdata] = StorageWeakRef(storage), (one.numel(), one.shape[0])
            if any(isinstance(one, torch.Tensor) for one in args):
                return
        self.step.count += 1
        self.step.moved += sum(one.nbytes for one in (*given, *made))
        self.step.input = max(self.step.input or (0, 0), self._largest_input(given) or (0, 0))
        count = _flop_counts().get(operation._overloadpacket)
        if count is not None:
            with contextlib.suppress(Exception):  # torch's formulas do not know all forms of a call
                self.step.flops[_dtype(given)] += int(count(*args, **kwargs, out_val=result))

    def _largest_input(self, found: Sequence[Any]) -> tuple[int, int] | None:
        """Elements and rows of the largest of these tensors that is an input of the step."""
        known = (self.inputs.get(one.untyped_storage()._cdata) for one in found)
        return max((one[1] for one in known if one is not None and not one[0].expired()), default=None)

    def on_read(self, frame: FrameType) -> None:
        """The host has read a value."""
        site = self.observer.sites.of_frame(frame)
        self.reads[HostRead(SourceLine(site.path, site.line, site.code), "a value")] += 1

    # -- steps ------------------------------------------------------------------------------------------------------
    def end_step(self) -> None:
        """A step has ended. Raises StepLimit if the trace is complete."""
        if not self._add_step():
            return
        if self.steady_state.add(self.events.since_last(self.latest)):
            raise StepLimit

    def _add_step(self) -> bool:
        """Whether there was anything."""
        step, self.step = self.step, _Step()
        step.peak, self.live.peak = self.live.peak, 0
        if not step.programs and not step.count:
            return False
        self.operations.append(step)
        # Operations differ from step to step (a loss is printed now and then) without a recompile.
        self.latest = "|".join(step.programs) or EAGER
        self.steps[self.latest] = step.programs
        self.sequence += [*step.programs, *([EAGER] if step.count else [])]
        return True

    # -- the end ----------------------------------------------------------------------------------------------------
    def finish(self) -> bool:
        """The function has ended. Returns whether anything was pending."""
        pending = not self.steady_state.settled and self._add_step()
        if pending:
            self.steady_state.add(self.events.since_last(self.latest))
        self.steady_state.at_end()
        self._write()
        return pending

    def _write(self) -> None:
        known, notes = dict(self.programs), list(self.steady_state.notes)
        if EAGER in self.sequence:
            last = next(step for step in reversed(self.operations) if step.count)
            known[EAGER] = self._of_operations(last)
            notes.append(_ONE_BY_ONE.format(last.count))
        steady = {EAGER, *(key for kind in self.steady_state.steady for key in self.steps[kind])}
        # The last one is the one that is described: the largest program of the steady step, which is a backward pass.
        order = sorted(
            dict.fromkeys(self.sequence),
            key=lambda key: (key in steady, known[key].graph.name == BACKWARD, len(known[key].graph.module)),
        )
        graphs = [replace(known[key].graph, beside=known[key].beside) for key in order]
        write_trace(
            self.tracing.folder,
            [(graph, key in steady) for graph, key in zip(graphs, order, strict=True)],
            syncs=len(self.operations),
            sequence=[order.index(key) for key in self.sequence],
            settled=self.steady_state.settled,
            ended=self.steady_state.ended,
            differences=[],
            reads=[replace(one, count=count) for one, count in self.reads.items()],
            refused=[],
            seconds=time.monotonic() - self.started,
            batch=max((known[key].rows or 0 for key in order if key in steady), default=0) or None,
            rows=[known[key].rows for key in order],
            notes=notes,
            problem=[] if order else list(_NO_STEP),
        )

    def _of_operations(self, step: _Step) -> Program:
        found = Operations(step.count, step.moved, dict(step.flops))
        key = f"{EAGER}-{step.count}-{step.moved}-{sum(step.flops.values())}"
        graph = LoweredGraph(
            b"", EAGER, key, replicas=self.tracing.world, steady=False, operations=found, name="operations"
        )
        rows = step.input[1] if step.input and not step.programs else None
        return Program(graph, beside=max(one.peak for one in self.operations), rows=rows)


def _build(_original: Any) -> Any:
    """Instead of compiling for this machine: the module alone."""

    def build(result_tensors: Any, argument_tensors: Any, use_stablehlo_bounds: bool = False, **_: Any) -> Any:
        module = import_module("torch_tpu._internal.compile.compiler").tpu_torch_compile.build_mlir(
            result_tensors, argument_tensors, use_stablehlo_bounds
        )
        return SimpleNamespace(executable=None, module=module)

    return build


def _refuse_dynamic(_original: Any) -> Any:
    """It makes programs that need an executable of this machine."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise TpuMagicsError(
            "A step with dynamic dimensions cannot be traced.",
            "For them, torch_tpu makes several programs, by sizes that are known only when they run.",
            "Leave out mark_dynamic for the preflight, with the largest size that there will be.",
        )

    return refuse


def _scope_of(node: Any, is_forward: bool) -> OpScope:
    """The scope of an operation of torch.compile's graph: the module that Dynamo notes of it, of a backward one
    that of its forward one. A forward operation in a backward pass is computed again."""
    backward = "fwd_source_fn_stack" in node.meta or "fwd_nn_module_stack" in node.meta
    stack = node.meta.get("fwd_nn_module_stack" if backward else "nn_module_stack") or {}
    path, kind = next(reversed(stack.values()), ("", None))
    inside = _INSIDE.sub(r".\1", _ROOT.sub("", path)).strip(".")
    phase = BACKWARD if backward else FORWARD if is_forward else RECOMPUTE
    return OpScope(inside or (getattr(kind, "__name__", "") if kind is not None else ""), phase)


def _returned(count: int) -> int:
    """How many of a forward pass's outputs are not only for its backward pass; all `count` where that is unknown."""
    context = torch._guards.TracingContext.try_get()
    returned = getattr(getattr(context, "fw_metadata", None), "num_forward_returns", None)
    return count if returned is None else int(returned)


def _dtype(found: Sequence[Any]) -> str:
    """XLA's name of the widest type."""
    widest = max(found, key=lambda one: one.dtype.itemsize).dtype
    return {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}.get(
        widest, str(widest)[len("torch.") :]
    )


@functools.cache
def _flop_counts() -> Mapping[Any, Any]:
    """Operation -> FLOPs, from its arguments: torch's own, and what it has none for."""
    aten = torch.ops.aten
    found: Mapping[Any, Any] = import_module("torch.utils.flop_counter").flop_registry
    return {**found, aten.linear: _of_linear, aten.linear_backward: _of_linear_backward}


def _of_linear(inputs: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * int(inputs.numel()) * int(weight.shape[0])


def _of_linear_backward(inputs: Any, _grad: Any, weight: Any, mask: Sequence[bool], **_: Any) -> int:
    return _of_linear(inputs, weight) * sum(mask[:2])
