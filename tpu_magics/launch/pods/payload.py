"""The payload of a run on many hosts: the work, and the state of the notebook's process that forked workers inherit;
packed, or the part found and named that cannot be pickled.

Models that the function builds itself are built once on each host, by the process that forks the workers there.
"""

from __future__ import annotations

import ast
import dis
import inspect
import io
import linecache
import os
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import hoist, session
from tpu_magics.launch.pods.bundle import Bundle, BundlePickler, pack
from tpu_magics.launch.work import CellWork, FunctionWork, ScriptWork, Work, statements_work
from tpu_magics.runs.files import read_regular
from tpu_magics.runs.origin import is_library

if TYPE_CHECKING:
    from tpu_magics.launch.run import TrainingRun
    from tpu_magics.launch.state.snapshot import StateSnapshot

# Variables that change the computation. The others describe the notebook's own machine.
_VARIABLE_PREFIXES = (
    "XLA_",
    "PT_XLA_",
    "LIBTPU_",
    "TORCH_",
    "PYTORCH_",
    "ACCELERATE_",
    "TRANSFORMERS_",
    "HF_",
    "OMP_",
    "MKL_",
)
_VARIABLES = ("TOKENIZERS_PARALLELISM", "MPLBACKEND", "CUBLAS_WORKSPACE_CONFIG")
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL", "AUTH")
_FOLDERS = ("_HOME", "_CACHE", "_DIR", "_PATH")  # HF_HOME, TORCH_HOME: folders of this machine
_SHELL_NAMES = frozenset({"get_ipython", "In", "Out", "exit", "quit", "open", "_", "__", "___", "_ih", "_oh", "_dh"})


@dataclass(frozen=True)
class Payload:
    """`work`: without hoisted models; `models`: those whose weights are returned, by name, without hoisted ones;
    `hoisted`: names and lines of the hoisted ones; `arguments`, `source`: of the function, to hoist them again; `tree`:
    the statements of a cell; `names`: the notebook's names that they read; `script`: the text of a script; `state`:
    Backend.process_state; `structure`: StateSnapshot.structure of the objects that the work reaches."""

    backend: Backend
    work: Work
    models: Mapping[str, Any]
    hoisted: tuple[tuple[str, int], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    tree: ast.Module | None = None
    names: Mapping[str, Any] = field(default_factory=dict)
    script: bytes | None = None
    state: Any = None
    structure: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cell_names: Mapping[str, str] = field(default_factory=dict)
    cell_ids: Mapping[str, str] = field(default_factory=dict)


def gather(
    work: Work,
    backend: Backend,
    *,
    hoistable: Any = None,
    arguments: Mapping[str, Any] | None = None,
    source: str = "",
    cell_names: Mapping[str, str] | None = None,
    cell_ids: Mapping[str, str] | None = None,
) -> Payload:
    """The payload of this work. The last arguments: as in a Request and the notebook."""
    own = {id(one.model) for one in work.hoists.hoisted} if work.hoists is not None else set()
    models = {name: model for name, model in work.models.items() if id(model) not in own}
    names = {name: model for name, model in work.models.items() if id(model) in own}
    lines = {id(one.model): one.line for one in work.hoists.hoisted} if work.hoists is not None else {}
    payload = Payload(
        backend=backend,
        work=_without_hoists(work, models),
        models=models,
        hoisted=tuple((name, lines[id(model)]) for name, model in names.items()),
        state=backend.randomness.process_state(),
        environment=dict(_environment()),
        cell_names=cell_names or {},
        cell_ids=cell_ids or {},
    )
    if isinstance(work, CellWork):
        read = dict(_read_names(work))
        payload = replace(payload, names=read, tree=hoistable if names else None, source=source)
    elif isinstance(work, ScriptWork):
        payload = replace(payload, script=read_regular(work.path))
    elif names:
        payload = replace(payload, arguments=dict(arguments or {}), source=source)
    return payload


def _without_hoists(work: Work, models: dict[str, Any]) -> Work:
    if isinstance(work, CellWork):
        return replace(work, models=models, hoists=None, before={}, spaces=[])
    if isinstance(work, FunctionWork):
        return replace(work, models=models, hoists=None, calls=[])
    return replace(work, hoists=None) if isinstance(work, ScriptWork) else work


def _read_names(work: CellWork) -> Iterator[tuple[str, Any]]:
    codes = [work.code] if work.last is None else [work.code, work.last]
    for name in dict.fromkeys(name for code in codes for name in loaded_names(code)):
        if name in work.namespace and name not in _SHELL_NAMES:
            yield name, work.namespace[name]


def loaded_names(code: types.CodeType) -> Iterator[str]:
    """The globals that code and its inner functions read or delete; not attributes."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from loaded_names(constant)


def _environment() -> Iterator[tuple[str, str]]:
    """Without secrets, and without folders of this machine."""
    for name, text in os.environ.items():
        local = name.endswith(_FOLDERS) or any(word in name for word in _SECRETS)
        if name in _VARIABLES or (name.startswith(_VARIABLE_PREFIXES) and not local):
            yield name, text


def cell_sources(cell_names: Mapping[str, str]) -> dict[str, list[str]]:
    """Lines of cells, for tracebacks and for `inspect`: their files are not on a disk."""
    return {
        name: list(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and (name in cell_names or not (is_library(name) or Path(name).exists()))
    }


# -- on a host --------------------------------------------------------------------------------------------------------


def prepare_process(payload: Payload, main: dict[str, Any]) -> None:
    """Restore the state of the notebook's process, before workers are forked. `main`: in place of its dict."""
    main.update(payload.names)
    payload.backend.prepare()
    payload.backend.prepare_notebook()
    payload.backend.randomness.set_process_state(payload.state)


def rebuild_work(payload: Payload, main: dict[str, Any], folder: Path) -> Work:
    """The work, with hoisted models built here."""
    work = payload.work
    if isinstance(work, ScriptWork):
        return _script_work(work, payload.script or b"", folder)
    hoists = _rebuild_hoists(payload, main) if payload.hoisted else None
    models = dict(payload.models)
    if hoists is not None:
        models.update(zip((name for name, _ in payload.hoisted), hoists.models.values(), strict=True))
    if isinstance(work, CellWork):
        before = dict(main)
        if hoists is None or payload.tree is None:
            return replace(work, namespace=main, models=models, before=before)
        return statements_work(payload.tree, work.code.co_filename, main, before, models, hoists)
    return replace(work, models=models, hoists=hoists) if isinstance(work, FunctionWork) else work


def _rebuild_hoists(payload: Payload, main: dict[str, Any]) -> hoist.HoistPlan | None:
    """The hoisted models, built again; None if they differ from the notebook's, then each worker builds its own."""
    work = payload.work
    hoistable: Any = work.function if isinstance(work, FunctionWork) else payload.tree
    hoists = hoist.plan_hoists(
        hoistable,
        arguments=payload.arguments,
        namespace=main,
        backend=payload.backend,
        source=payload.source if payload.tree is not None else None,
    )
    same = [one.line for one in hoists.hoisted] == [line for _, line in payload.hoisted]
    return replace(hoists, pid=0) if same else None


def _script_work(work: ScriptWork, text: bytes, folder: Path) -> ScriptWork:
    """The script's own path if the same file is there, so that it finds the files beside it; else a copy."""
    path = Path(work.path)
    try:
        if read_regular(path) == text:
            return work
    except OSError:
        pass
    copy = folder / path.name
    copy.write_bytes(text)
    return replace(work, path=str(copy))


# -- packing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Receiver:
    """Who gets a bundle, for sentences: `name`, and `why` its content is pickled."""

    name: str
    why: str


HOSTS = Receiver(
    "the hosts",
    "For several hosts the function and all objects that it uses are pickled. On one host workers inherit them and "
    "nothing is pickled.",
)
PROCESSES = Receiver(
    "the workers",
    "The device's runtime does not start in a fork of this notebook, so the workers are new processes, for which the "
    "function and all objects that it uses are pickled.",
)


def pack_run(run: TrainingRun, snapshot: StateSnapshot, receiver: Receiver) -> Bundle:
    """The bundle of a run that is to begin. Raises TpuMagicsError that names what cannot be pickled."""
    gathered = gather(
        run.work,
        session.current.backend,
        hoistable=run.request.hoistable,
        arguments=run.request.arguments,
        source=run.request.source,
        cell_names=run.cell_names,
        cell_ids=run.cell_ids,
    )
    gathered = replace(gathered, structure=snapshot.structure())
    return pack_payload(gathered, session.current.notebook.namespace, cell_sources(run.cell_names), receiver)


_DEPTH = 12
_WIDTH = 1000  # parts of one object that are searched


def pack_payload(
    payload: Payload, namespace: dict[str, Any], texts: Mapping[str, list[str]], receiver: Receiver = HOSTS
) -> Bundle:
    """The bundle of a run. Raises TpuMagicsError that names what cannot be pickled."""
    try:
        return pack(payload, namespace, texts)
    except Exception as error:
        raise explain_pickling_error(payload, namespace, error, receiver) from None


def explain_pickling_error(
    payload: Payload, namespace: dict[str, Any], error: Exception, receiver: Receiver = HOSTS
) -> TpuMagicsError:
    """The error that names the part; `error`: the one that pickling the whole payload raised."""
    culprit = _find(_roots(payload), namespace, set(), ())
    path, value, reason = culprit if culprit is not None else (("the training function",), None, error)
    name = path[-1]
    via = f", found in {' -> '.join(f'`{one}`' for one in path[:-1])}" if len(path) > 1 else ""
    kind = "" if value is None else f"It is of type {type(value).__module__}.{type(value).__qualname__}{via}. "
    return TpuMagicsError(
        f"`{name}` cannot be sent to {receiver.name}.",
        f"{kind}{type(reason).__name__}: {' '.join(str(reason).split())[:300]}. {receiver.why}",
        f"Create `{name}` inside the training function (for example open files, connections, locks and generators), or "
        "pass the function the data that it is created from.",
    )


Unpicklable = tuple[tuple[str, ...], Any, Exception]


def _roots(payload: Payload) -> Iterator[tuple[str, Any]]:
    work = payload.work
    if isinstance(work, FunctionWork):
        yield from _arguments(work)
        yield str(getattr(work.function, "__name__", "") or type(work.function).__name__), work.function
    elif isinstance(work, CellWork):
        yield from payload.names.items()
    yield from payload.models.items()
    yield from payload.arguments.items()


def _arguments(work: FunctionWork) -> list[tuple[str, Any]]:
    try:
        names = list(inspect.signature(work.function).parameters)
    except (TypeError, ValueError):
        names = []
    names = names[1:] if work.index_first else names
    names += [f"argument {number}" for number in range(len(names), len(work.args))]
    return [*zip(names, work.args, strict=False), *work.kwargs.items()]


def _find(
    parts: Iterator[tuple[str, Any]], namespace: dict[str, Any], seen: set[int], path: tuple[str, ...]
) -> Unpicklable | None:
    """The innermost part that cannot be pickled, with its path."""
    for name, value in parts:
        if id(value) in seen or len(path) > _DEPTH:
            continue
        seen.add(id(value))
        problem = _problem(value, namespace)
        if problem is not None:
            inner = (*path, name)
            return _find(_parts(value), namespace, seen, inner) or (inner, value, problem)
    return None


def _problem(value: Any, namespace: dict[str, Any]) -> Exception | None:
    try:
        BundlePickler(io.BytesIO(), namespace, lambda _buffer: False).dump(value)
    except Exception as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, with names that a user knows."""
    if issubclass(type(value), types.MethodType):
        yield "self", value.__self__
        yield value.__func__.__name__, value.__func__
    elif issubclass(type(value), types.FunctionType):
        yield from _function_parts(value)
    elif issubclass(type(value), dict):
        yield from ((_entry(key), item) for key, item in list(value.items())[:_WIDTH])
    elif issubclass(type(value), (list, tuple, set, frozenset)):
        yield from ((f"[{number}]", item) for number, item in enumerate(list(value)[:_WIDTH]))
    elif issubclass(type(value), type):
        yield from ((name, item) for name, item in vars(value).items() if isinstance(item, types.FunctionType))
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from list(attributes.items())[:_WIDTH]
        yield type(value).__name__, type(value)


def _entry(key: object) -> str:
    return key if isinstance(key, str) else f"[{key!r}]"


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if is_library(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in dict.fromkeys(loaded_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from ((f"a default of {function.__name__}", one) for one in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
