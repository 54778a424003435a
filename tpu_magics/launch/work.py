"""What each worker runs: a function, the statements of a cell, or a script.

The results of a rank are one pickle of a dict: `value` (pickled, or None) and `problem` (why it could not be pickled);
from rank 0 of a cell also `names` {name: pickled}, `modules` {name: module's name}, `same` {name: name of a model that
is updated}, and `left` {name: why it was not pickled}."""

from __future__ import annotations

import ast
import atexit
import builtins
import copy
import functools
import logging
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import cell, hoist, object_graph
from tpu_magics.launch.hoist.functions import function_source, unwrap_function
from tpu_magics.launch.resume import rewrite
from tpu_magics.launch.resume.rewrite import TrainingCode
from tpu_magics.launch.state.snapshot import deleted_names, global_names
from tpu_magics.runs.events import cut_text
from tpu_magics.runs.origin import is_library, is_user_function

if TYPE_CHECKING:
    from tpu_magics.launch.hoist import HoistPlan

Note = Callable[[str, str], None]


class Pickles(Protocol):
    """Pickles results: those of a Backend, or a ResultPickler."""

    def dumps(self, value: Any) -> bytes:
        """Pickle `value`. Raises what pickle raises."""


class Work(Protocol):
    """What every rank runs."""

    @property
    def models(self) -> dict[str, Any]:
        """The models to update in the notebook, by name. A worker replaces an entry of its own copy if it built that
        model itself."""

    @property
    def hoists(self) -> HoistPlan | None:
        """The models that were hoisted, i.e. built in the notebook."""

    def roots(self) -> list[tuple[str, Any]]:
        """The objects, by name, from which all others are reached."""

    def assigned(self) -> Mapping[str, Any]:
        """In a worker, after the run: the notebook's names that it assigned."""

    def install(self, note: Note, replicas: int) -> None:
        """Once in each worker, before its `replicas` threads run; `note(code, text)` records a warning."""

    def resumable(self, functions: Sequence[types.FunctionType]) -> TrainingCode:
        """In a worker with one device, before the run: its training loops, which are iterated by launch/resume/ from
        now on. `functions`: the user's that it reaches."""

    def run(self, ordinal: int, replica: int) -> Any:
        """Run on one device, in its thread."""

    def results(self, ordinal: int, value: Any, pickles: Pickles, **more: Any) -> bytes:
        """The packed results of this rank, with `more`. `done`: assigned names that are sent in another way."""


def _install_hoists(hoists: HoistPlan | None, models: dict[str, Any], note: Note, replicas: int) -> None:
    if hoists is None:
        return

    def declined(number: int, reason: str) -> None:
        one = hoists.hoisted[number]
        note("not-hoisted", f"Each worker built `{one.code}` (line {one.line}) by itself after all: {reason}.")

    def built(number: int, model: Any) -> None:
        """The model that was built here is the one that is trained: its weights update the notebook's model."""
        for name in [name for name, own in models.items() if own is hoists.hoisted[number].model]:
            models[name] = model

    hoists.install(declined, replicas=replicas, on_built=built)


def packed(value: Any, pickles: Pickles, **more: Any) -> bytes:
    """A rank's results. A value that cannot be pickled is omitted, with the reason; it does not fail the run."""
    data, problem = _try_dumps(value, pickles)
    return pickle.dumps({"value": data, "problem": problem, **more})


def _try_dumps(value: Any, pickles: Pickles) -> tuple[bytes | None, str]:
    try:
        return pickles.dumps(value), ""
    except TpuMagicsError as error:
        return None, error.what
    except Exception as error:
        return None, cut_text(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class FunctionWork:
    """A function call. `index_first`: the rank is the first argument (xmp.spawn, torch_xla.launch); `names`: a name for
    each of `args`."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None
    index_first: bool = False
    names: tuple[str, ...] = ()

    calls: list[Callable[..., Any]] = field(default_factory=list)

    def roots(self) -> list[tuple[str, Any]]:
        name = str(getattr(self.function, "__name__", "function"))
        return [*zip(self.names, self.args, strict=False), *self.kwargs.items(), (name, self.function)]

    def assigned(self) -> Mapping[str, Any]:
        return {}

    def install(self, note: Note, replicas: int) -> None:
        _install_hoists(self.hoists, self.models, note, replicas)
        self.calls.append(functools.partial(_call, self.function, self.args, self.kwargs))
        self.calls.extend(self._copied_call() for _ in range(1, replicas))

    def _copied_call(self) -> Callable[..., Any]:
        copies = _copies(self.models, self.hoists)
        args = tuple(copies.argument(arg) for arg in self.args)
        kwargs = {name: copies.argument(arg) for name, arg in self.kwargs.items()}
        return functools.partial(_call, copies.function(self.function), args, kwargs)

    def resumable(self, functions: Sequence[types.FunctionType]) -> TrainingCode:
        hoists = self.hoists
        changed = {}
        if hoists is not None and hoists.code is not None and hoists.hoisted:
            source = function_source(hoists.function)
            if source is not None:
                changed[id(hoists.function)] = hoist.replace_calls(source.tree, hoists)
        inner = unwrap_function(self.function)[0]  # `self.function` may be a partial
        begins = [*(name for name, _ in self.roots()), *([inner.__name__] if inner is not None else [])]
        return rewrite.change_functions(functions, changed, begins)

    def run(self, ordinal: int, replica: int) -> Any:
        return self.calls[replica](*((ordinal,) if self.index_first else ()))

    def results(self, ordinal: int, value: Any, pickles: Pickles, **more: Any) -> bytes:  # noqa: ARG002
        return packed(value, pickles, models=list(self.models), **more)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *first: Any) -> Any:
    return function(*first, *args, **kwargs)


def _copies(models: Mapping[str, Any], hoists: HoistPlan | None) -> Copies:
    """Copies for one more device; hoisted models are copied by the hoist plan."""
    hoisted = {id(model) for model in hoists.models.values()} if hoists is not None else set()
    return Copies({name: model for name, model in models.items() if id(model) not in hoisted})


@dataclass(frozen=True)
class CellWork:
    """The statements of a cell, run with the notebook's names. `code`: compiled statements; `last`: the final
    expression, to be displayed; `namespace`: the notebook's, inherited by the fork; `before`: its values before the
    run; `tree`: of `code`; `resumed`: what runs in its place where the run can be resumed."""

    code: types.CodeType
    last: types.CodeType | None
    namespace: dict[str, Any]
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    spaces: list[dict[str, Any]] = field(default_factory=list)
    tree: ast.Module | None = None
    resumed: list[types.CodeType] = field(default_factory=list)

    def roots(self) -> list[tuple[str, Any]]:
        read = [name for code in (self.code, self.last) if code is not None for name in global_names(code)[0]]
        found = [(name, self.namespace[name]) for name in dict.fromkeys(read) if name in self.namespace]
        return [*found, *deleted_names(self.code, self.namespace)]

    def install(self, note: Note, replicas: int) -> None:
        _install_hoists(self.hoists, self.models, note, replicas)
        self.spaces.append(self.namespace)
        self.spaces.extend(_copies(self.models, self.hoists).space(self.namespace) for _ in range(1, replicas))

    def resumable(self, functions: Sequence[types.FunctionType]) -> TrainingCode:
        filename = self.code.co_filename
        tree = self.tree if self.tree is not None else ast.Module([], [])
        changed, own = rewrite.changed_statements(tree, functions)
        self.resumed.append(cell.compile_tree(changed, filename, "exec"))
        codes = [code for code in (self.code, self.last) if code is not None]
        names = [name for code in codes for name in object_graph.names_in(code)]
        found = rewrite.change_functions(functions, {}, names)
        return replace(
            found, sites={**found.sites, **own.sites}, others=[*own.others, *found.others], statements=own.statements
        )

    def run(self, ordinal: int, replica: int) -> Any:
        space = self.spaces[replica]
        exec(self.resumed[-1] if self.resumed else self.code, space)
        if self.last is not None:
            value = eval(self.last, space)
            if value is not None and ordinal == 0:
                _display(value)
        return None

    def results(self, ordinal: int, value: Any, pickles: Pickles, **more: Any) -> bytes:
        done = frozenset(more.pop("done", ()))
        if ordinal != 0:
            return packed(value, pickles, models=list(self.models), **more)
        names: dict[str, bytes] = {}
        modules: dict[str, str] = {}
        same: dict[str, str] = {}
        left: dict[str, str] = {}
        known = {id(model): name for name, model in self.models.items()}
        for name, item in self.assigned().items():
            if name in done:
                continue
            if issubclass(type(item), types.ModuleType):
                modules[name] = item.__name__
            elif id(item) in known:
                same[name] = known[id(item)]
            else:
                data, problem = _try_dumps(item, pickles)
                if data is None:
                    left[name] = problem
                else:
                    names[name] = data
        return packed(
            None, pickles, models=list(self.models), names=names, modules=modules, same=same, left=left, **more
        )

    def assigned(self) -> Mapping[str, Any]:
        """The names that the cell assigned, except private ones."""
        missing = object()
        return {
            name: value
            for name, value in self.namespace.items()
            if not name.startswith("_") and self.before.get(name, missing) is not value
        }


def statements_work(
    rest: ast.Module,
    filename: str,
    namespace: dict[str, Any],
    before: Mapping[str, Any],
    models: dict[str, Any],
    hoists: HoistPlan | None,
) -> CellWork:
    """The statements of a cell as every rank runs them, with hoisted calls replaced."""
    tree, expression = cell.split_last(rest if hoists is None else hoist.replace_calls(rest, hoists))
    code = cell.compile_tree(tree, filename, "exec")
    shown = None if expression is None else cell.compile_tree(expression, filename, "eval")
    return CellWork(code, shown, namespace, models, hoists, before, tree=tree)


def _display(value: Any) -> None:
    display = sys.modules.get("IPython.display")
    if display is not None:
        display.display(value)
    else:
        print(repr(value))


@dataclass(frozen=True)
class ScriptWork:
    """A script as `xla_spawn.py` runs it: its `_mp_fn(index)` if it defines one, else the script as `__main__`."""

    path: str
    argv: tuple[str, ...]
    has_mp_fn: bool
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None

    def roots(self) -> list[tuple[str, Any]]:
        return []

    def assigned(self) -> Mapping[str, Any]:
        return {}

    def install(self, note: Note, replicas: int) -> None:
        """A script builds its own models."""

    def resumable(self, functions: Sequence[types.FunctionType]) -> TrainingCode:
        found = rewrite.change_functions(functions, {}, [])
        found.left[Path(self.path).name] = "a script's own loops are not looked for"
        return found

    def run(self, ordinal: int, replica: int) -> Any:  # noqa: ARG002
        try:
            return self._run(ordinal)
        except SystemExit as ended:  # `sys.exit(main())` of a main() that returned None or 0
            if ended.code:
                raise
            return None

    def _run(self, ordinal: int) -> Any:
        import runpy

        sys.argv = [self.path, *self.argv]
        folder = str(Path(self.path).parent)
        sys.path.insert(0, folder)
        vars(builtins).setdefault("exit", sys.exit)  # IPython hides them while a cell runs, and puts them back then
        vars(builtins).setdefault("quit", sys.exit)
        try:
            with fresh_logging(), exit_functions_here():
                if not self.has_mp_fn:
                    runpy.run_path(self.path, run_name="__main__")
                    return None
                module = new_module(Path(self.path).stem, Path(self.path))
                execute(module)
                return module._mp_fn(ordinal)
        finally:
            if folder in sys.path:
                sys.path.remove(folder)  # it is the script's, not a change for the notebook

    def results(self, ordinal: int, value: Any, pickles: Pickles, **more: Any) -> bytes:  # noqa: ARG002
        return packed(value, pickles, models=list(self.models), **more)


@contextmanager
def exit_functions_here() -> Iterator[None]:
    """Within the block, what the user's code gives to `atexit` is called at the end of the block, as at the end of a
    script. A worker's own end calls none: they would be the notebook's too."""
    given: list[tuple[Callable[..., Any], Callable[[], Any]]] = []
    register, unregister = atexit.register, atexit.unregister

    def keep(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        code = sys._getframe(1).f_code
        if is_library(code.co_filename, code.co_name) and not is_user_function(function):
            return register(function, *args, **kwargs)
        given.append((function, functools.partial(function, *args, **kwargs)))
        return function

    def forget(function: Callable[..., Any]) -> None:
        given[:] = [one for one in given if one[0] != function]
        unregister(function)

    atexit.register, atexit.unregister = keep, forget  # type: ignore[assignment]
    try:
        yield
    finally:
        atexit.register, atexit.unregister = register, unregister
        for _, call in reversed(given):
            try:
                call()
            except (Exception, SystemExit):  # as Python does at its end
                traceback.print_exc()


# -- logging -------------------------------------------------------------------------------------------------------


@contextmanager
def fresh_logging() -> Iterator[None]:
    """Within the block, `logging` is as in a new Python, e.g. for a script's basicConfig(): without the handlers and
    levels of the notebook. Loggers of imported libraries stay as these have set them up."""
    root, manager = logging.root, logging.root.manager
    others = [one for name, one in manager.loggerDict.items() if name.partition(".")[0] not in sys.modules]
    loggers = [root, *(one for one in others if isinstance(one, logging.Logger))]
    before = [(one, one.handlers, one.filters, one.level, one.propagate, one.disabled) for one in loggers]
    disabled, captures = manager.disable, logging._warnings_showwarning is not None  # type: ignore[attr-defined]
    for logger in loggers:
        _set_logger(logger, [], [], logging.WARNING if logger is root else logging.NOTSET, True, False)
    logging.disable(logging.NOTSET)
    logging.captureWarnings(False)
    try:
        yield
    finally:
        for state in before:
            _set_logger(*state)
        logging.disable(disabled)
        logging.captureWarnings(captures)


def _set_logger(
    logger: logging.Logger, handlers: list[Any], filters: list[Any], level: int, propagate: bool, disabled: bool
) -> None:
    logger.handlers, logger.filters, logger.propagate, logger.disabled = handlers, filters, propagate, disabled
    logger.setLevel(level)


# -- files -----------------------------------------------------------------------------------------------------------


class _UncachedLoader(SourceFileLoader):
    """Compiles the current text of the file. Python's own loader uses cached byte code if the file's size and the
    second of its last change are unchanged, and writes the cache beside the file."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def new_module(name: str, path: Path) -> types.ModuleType:
    """Create the module in sys.modules, without running the file's code."""
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    assert spec is not None  # a loader was given
    sys.modules[name] = module = module_from_spec(spec)
    return module


def execute(module: types.ModuleType) -> None:
    """Run the file's code. Raises what it raises, and SyntaxError."""
    loader = module.__loader__
    assert isinstance(loader, _UncachedLoader)
    loader.exec_module(module)


# -- the second device of a worker (v2, v3): two threads cannot move one model to two devices --------------------------

COPY_DEPTH = 6  # levels to follow: an optimizer's parameters are four levels below it, a scheduler's five


class Copies:
    """The copies for one device. Made before any device's thread runs: later, the first one has moved its models.

    Copied are the models, all objects that contain one, and the arguments; tied weights stay tied among the copies.
    Functions that read a copied name are created again with the copies as globals. What cannot be copied (a lock, a
    generator) is shared.
    """

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._memo: dict[int, Any] = {}
        copy.deepcopy(list(models.values()), self._memo)
        self._copied = frozenset(self._memo)
        self._spaces: dict[int, dict[str, Any]] = {}

    def argument(self, value: Any) -> Any:
        """A copy; if the whole cannot be copied, copies of its parts."""
        if issubclass(type(value), (types.FunctionType, types.MethodType)):
            return self.function(value)
        trial = dict(self._memo)  # a failed copy leaves parts in its memo
        try:
            duplicate = copy.deepcopy(value, trial)
        except Exception:
            return self._copy_parts(value)
        self._memo.update(trial)
        return duplicate

    def _copy_parts(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self.argument(item) for item in value)
        if type(value) is dict:
            return {key: self.argument(item) for key, item in value.items()}
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or issubclass(type(value), (type, types.ModuleType)):
            return value
        try:
            duplicate = copy.copy(value)
        except Exception:
            return value
        self._memo[id(value)] = duplicate
        vars(duplicate).update({name: self.argument(item) for name, item in attributes.items()})
        return duplicate

    def space(self, names: dict[str, Any]) -> dict[str, Any]:
        """Globals for a function or a cell, with copies of all values that contain a model."""
        if id(names) not in self._spaces:
            self._spaces[id(names)] = space = dict(names)
            space.update({name: self._copy_named(name, value, names) for name, value in names.items()})
        return self._spaces[id(names)]

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with copies in place of the copied objects that it reads."""
        if isinstance(function, types.MethodType):
            return types.MethodType(self.function(function.__func__), self.argument(function.__self__))
        if not isinstance(function, types.FunctionType):
            return function
        return self._copy_function(function)

    def _copy_named(self, name: str, value: Any, names: dict[str, Any]) -> Any:
        if issubclass(type(value), types.FunctionType):
            return self._copy_function(value) if value.__globals__ is names else value
        return self.argument(value) if self._holds_a_model(name, value) else value

    def _holds_a_model(self, name: str, value: Any) -> bool:
        return any(id(part) in self._copied for _, part in object_graph.contents(name, value, COPY_DEPTH))

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        closure = tuple(self._copy_cell(cell) for cell in function.__closure__ or ()) or None
        defaults = tuple(self.argument(value) for value in function.__defaults__ or ()) or None
        space = self.space(function.__globals__)
        twin = types.FunctionType(function.__code__, space, function.__name__, defaults, closure)
        twin.__kwdefaults__ = {k: self.argument(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
        twin.__dict__.update(function.__dict__)
        return twin

    def _copy_cell(self, cell: types.CellType) -> types.CellType:
        try:
            value = cell.cell_contents
        except ValueError:
            return cell
        return types.CellType(self.argument(value)) if self._holds_a_model("", value) else cell
