"""Every run begins here, whichever framework and hosts it uses: `tpu_magics.train()`, a parsed cell or a script, and
`start()`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.frameworks import LOCAL
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted, plural
from tpu_magics.launch import cell, hoist, object_graph, process, results, rule_check, session
from tpu_magics.launch.options import ALL_DEVICES, Options, made_options
from tpu_magics.launch.request import Request, function_request
from tpu_magics.launch.results import TrainResult
from tpu_magics.launch.run import Strategy, prepare
from tpu_magics.launch.strategies.forked import ForkedStrategy
from tpu_magics.launch.strategies.in_process import InProcessStrategy
from tpu_magics.launch.used_packages import calls_use_spmd, packages_of_code, packages_of_tree
from tpu_magics.launch.work import ScriptWork, Work, statements_work
from tpu_magics.runs.events import End, only
from tpu_magics.runs.files import read_regular, working_folder
from tpu_magics.runs.folder import check_name
from tpu_magics.runs.reader import Run

if TYPE_CHECKING:
    from tpu_magics.launch.pods.pod import Pod


def train(
    function: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> results.TrainResult:
    """Train `function(*args, **kwargs)` on every rank. `options`: those of Options, by name."""
    __tracebackhide__ = True
    return start(function_request(function, args, kwargs), made_options(**options))


def start(request: Request, options: Options, workers: int | None = None) -> results.TrainResult:
    """Run a request. `workers` overrides the number of forked processes without a check.

    Raises:
        TpuMagicsError: the run cannot start.
        TrainingFailed: the run failed; the models are unchanged.
        Exception: what the user code raised in this process; the models are restored.
    """
    __tracebackhide__ = True
    options.check()
    if options.run_name is not None:
        check_name(options.run_name)
    while True:
        try:
            return _start(request, options, workers)
        except TrainingFailed as error:
            if not options.retries or not was_killed(error):
                raise
            options = replace(options, retries=options.retries - 1, resume=bool(session.current.checkpoints))
            left = "1 retry is" if options.retries == 1 else f"{options.retries or 'no'} retries are"
            session.current.notebook.say(f"{error.what} Starting again ({left} left after it).")
            if session.current.pod is not None:
                options = _with_hosts_again(options, session.current.pod)


def was_killed(error: TrainingFailed) -> bool:
    """Whether a run ended from outside: the rank that failed first raised nothing, and nobody stopped it."""
    if isinstance(error, TrainingInterrupted) or error.rank is None or not error.run:
        return False
    return not any(one.error_type for one in only(Run(error.run).events("end", error.rank), End))


def _with_hosts_again(options: Options, before: Pod) -> Options:
    """After a host was lost: on those of the cluster that are left, or come back. The number of ranks stays, if they
    can have it."""
    from tpu_magics.launch.pods import host_selection

    current = session.current
    ranks = options.processes or before.ranks
    current.pod = pod = host_selection.find_again(before, ranks, current.slice, current.notebook.say)
    names = ", ".join(host.name for host in pod.hosts)
    current.notebook.say(f"The hosts are now {names}, with {plural(pod.ranks, 'rank')} together.")
    return replace(options, processes=options.processes and pod.ranks)


def _start(request: Request, options: Options, workers: int | None) -> results.TrainResult:
    __tracebackhide__ = True
    session.current.refuse_second()
    process.require_main_thread()
    strategy = choose_strategy(request, workers)
    options = _with_its_spmd(request, options)
    strategy.check_options(request, options)
    ranks = options.processes or session.current.processes
    findings = rule_check.check_code(request.hoistable, request.script, options.strict, ranks, request.argv)
    if options.gate is not None and not strategy.in_process:
        options.gate(request, replace(options, gate=None))
    run = prepare(request, options, strategy)
    session.current.last = run.result
    rule_check.record_findings(run.folder, findings)
    run.execute()
    return run.result


def _with_its_spmd(request: Request, options: Options) -> Options:
    """A program that turns SPMD on itself is started as with --spmd: in a worker whose runtime has started for one
    device, torch_xla 2.9 crashes later."""
    current = session.current
    chosen = options.spmd is not None or current.spmd is not None or (options.processes or current.processes or 1) > 1
    if chosen or request.launcher or not calls_use_spmd(request.source):
        return options
    current.notebook.say("The code calls use_spmd(): one worker drives all devices, as with --spmd.")
    return replace(options, processes=None, spmd=ALL_DEVICES)


def choose_strategy(request: Request, workers: int | None = None) -> Strategy:
    """In this process if the framework does not work after a fork, on the session's hosts, or in forks on this host."""
    current = session.current
    if current.is_local(request.items, request.packages, bool(request.launcher)):
        return InProcessStrategy()
    if current.pod is None:
        return ForkedStrategy(workers)
    from tpu_magics.launch.strategies.ray import RayStrategy

    return RayStrategy(current.pod)


# -- cells ------------------------------------------------------------------------------------------------------------


INTERCEPT = "__tpu_magics_launch__"


@dataclass(frozen=True)
class CellSource:
    """A cell's text as Python, and its file name. Magics are translated; blank lines in front keep the line numbers."""

    text: str
    filename: str


def train_cell(source: CellSource, words: Sequence[str], options: Options) -> TrainResult | None:
    """Train a `%%tpu_train` cell. None if a form 2 cell never reached its launcher call."""
    __tracebackhide__ = True
    positional, named = cell.parse_arguments(words)
    namespace = session.current.notebook.namespace
    try:
        read = cell.read_cell(source.text, source.filename, namespace)
    except SyntaxError as error:
        raise cell.syntax_error(error) from None
    if read.form == 1:
        return _train_definition(read, positional, named, options, namespace)
    if positional or named:
        raise TpuMagicsError(
            f"This cell takes no ARGs, but got: {', '.join([*positional, *named])}.",
            _WHY_NO_ARGS[read.form],
            "Remove them, or end the cell with the function that takes them.",
        )
    if read.form == 2:
        return _train_launches(read, options, namespace)
    last = read.tree.body[-1]
    if isinstance(last, (ast.FunctionDef, ast.AsyncFunctionDef)):
        session.current.notebook.say(
            f"The statements of this cell train; `{last.name}`, which is defined at its end, is not called."
        )
    return start(_statements(read, source, namespace), options)


_WHY_NO_ARGS = {
    2: "It calls a launcher, and the arguments of that call are used.",
    3: "It has plain statements, which take no arguments, and no function below them that it would train.",
}


def train_function(words: Sequence[str], options: Options) -> TrainResult:
    """`%tpu_train FUNCTION ARG ...`, or `%tpu_train script.py [args]`."""
    if not words:
        raise TpuMagicsError(
            "%tpu_train needs something to train.",
            "It takes a function or a script.",
            "Write %tpu_train FUNCTION [ARG ...] or %tpu_train script.py [args], or write %%tpu_train as first line of "
            "a cell.",
        )
    if words[0].endswith(".py"):
        return start(_script(words[0], words[1:]), options)
    namespace = session.current.notebook.namespace
    positional, named = cell.parse_arguments(words)
    if not positional:
        return train_function([], options)
    cell.refuse_call(positional[0], namespace)
    with session.current.scope(options.precision):
        values, keywords = cell.evaluate_all(positional, named, namespace)
    return start(function_request(values[0], values[1:], keywords, labels=positional[1:]), options)


# -- form 1 -----------------------------------------------------------------------------------------------------------


def _train_definition(
    read: cell.Cell, positional: Sequence[str], named: Mapping[str, str], options: Options, namespace: dict[str, Any]
) -> TrainResult:
    __tracebackhide__ = True
    code = cell.compile_tree(read.tree, read.filename, "exec")
    with session.current.scope(options.precision, read.tree):
        exec(code, namespace)
        values, keywords = cell.evaluate_all(positional, named, namespace)
    function = namespace[read.function]
    return start(function_request(function, values, keywords, labels=positional), options)


# -- form 2 -----------------------------------------------------------------------------------------------------------


def _train_launches(read: cell.Cell, options: Options, namespace: dict[str, Any]) -> TrainResult | None:
    """Run the cell in the notebook; its launcher calls go through our launcher."""
    __tracebackhide__ = True
    last: list[TrainResult] = []

    def intercept(number: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        call, kind = read.calls[number]
        bound = inspect.signature(original).bind(*args, **kwargs)
        namespace[options.output] = run_launcher(kind, bound, options, _labels(call))
        last.append(namespace[options.output])

    body, final = cell.split_final(cell.replace_calls(read, INTERCEPT))
    code, shown = cell.compile_tree(body, read.filename, "exec"), cell.compile_tree(final, read.filename, "single")
    namespace[INTERCEPT] = intercept
    try:
        exec(code, namespace)
        exec(shown, namespace)
    finally:
        namespace.pop(INTERCEPT, None)
    return last[-1] if last else None


def _labels(call: ast.Call) -> Sequence[str]:
    """The texts in a call's `args=(model, 3)`; all three launchers take it second. (The call was replaced already.)"""
    given = next((word.value for word in call.keywords if word.arg == "args"), dict(enumerate(call.args)).get(3))
    elements = given.elts if isinstance(given, (ast.Tuple, ast.List)) else []
    return [] if any(isinstance(one, ast.Starred) for one in elements) else [ast.unparse(one) for one in elements]


def _notebook_launcher(call: inspect.BoundArguments, options: Options, labels: Sequence[str]) -> TrainResult:
    """accelerate.notebook_launcher. Unlike Accelerate on a TPU, this respects num_processes and mixed_precision."""
    given = call.arguments
    if int(given.get("num_nodes", 1)) > 1:
        raise TpuMagicsError(
            f"notebook_launcher(num_nodes={given['num_nodes']}) is not supported.",
            "The launcher starts workers on one host.",
            "Omit num_nodes.",
        )
    mixed = str(given.get("mixed_precision", "no")).lower()
    environment = {"ACCELERATE_MIXED_PRECISION": mixed} if mixed != "no" else {}
    options = replace(
        options,
        precision=options.precision or ("bf16" if mixed == "bf16" else None),
        processes=_supported_processes(given.get("num_processes"), options),
        environment={**options.environment, **environment},
    )
    return _start_call(given["function"], given.get("args", ()), options, labels, False, "notebook_launcher")


def _spawn(call: inspect.BoundArguments, options: Options, labels: Sequence[str]) -> TrainResult:
    """torch_xla's xmp.spawn: the rank is the function's first argument."""
    given = call.arguments
    options = replace(options, processes=_supported_processes(given.get("nprocs"), options))
    return _start_call(given["fn"], given.get("args", ()), options, labels, True, "xmp.spawn")


def _launch(call: inspect.BoundArguments, options: Options, labels: Sequence[str]) -> TrainResult:
    """torch_xla.launch: the same, with `debug_single_process`."""
    given = call.arguments
    processes = 1 if given.get("debug_single_process") else None
    options = replace(options, processes=options.processes or processes)
    return _start_call(given["fn"], given.get("args", ()), options, labels, True, "torch_xla.launch")


_INTERCEPTORS: Mapping[str, Callable[[inspect.BoundArguments, Options, Sequence[str]], TrainResult]] = {
    "notebook_launcher": _notebook_launcher,
    "xmp.spawn": _spawn,
    "torch_xla.launch": _launch,
}


def run_launcher(kind: str, call: inspect.BoundArguments, options: Options, labels: Sequence[str] = ()) -> TrainResult:
    """Run a launcher call of the user's code; `kind`: a key of `_INTERCEPTORS`."""
    return _INTERCEPTORS[kind](call, options, labels)


def _start_call(
    function: Any, args: Any, options: Options, labels: Sequence[str], index_first: bool, launcher: str
) -> TrainResult:
    args = tuple(args) if isinstance(args, (list, tuple)) else (args,)
    request = function_request(function, args, index_first=index_first, labels=labels, launcher=launcher)
    return start(request, options)


def _supported_processes(requested: Any, options: Options) -> int | None:
    """The number of processes that a launcher call requests, if this host supports it; else the host's own number, with
    a message."""
    if options.processes is not None or requested is None or session.current.framework == LOCAL.name:
        return options.processes  # TensorFlow rejects the whole call
    if options.spmd is not None:
        session.current.notebook.say(
            f"The call requests {requested} processes; with --spmd one process drives all devices."
        )
        return None
    pod = session.current.pod
    if pod is not None:
        return _supported_on_hosts(pod, int(requested))
    host = session.known_host()
    ranks = host.workers * host.replicas
    if requested in (1, ranks):
        return int(requested)
    if host.device == "CPU" and isinstance(requested, int):
        session.current.notebook.say(
            f"The call requests {requested} processes: {requested} ranks are rehearsed on XLA:CPU (-n 1 trains with "
            "one)."
        )
        return requested
    session.current.notebook.say(
        f"The call requests {requested} processes; this host has {plural(len(host.chips), 'TPU chip')}, so "
        f"{plural(ranks, 'rank')} {'is' if ranks == 1 else 'are'} started."
    )
    return None


def _supported_on_hosts(pod: Pod, requested: int) -> int | None:
    if requested == pod.ranks or (pod.device == "CPU" and requested > 0 and requested % len(pod.hosts) == 0):
        return requested
    session.current.notebook.say(
        f"The call requests {requested} processes; on {len(pod.hosts)} hosts {pod.ranks} ranks are started."
    )
    return None


# -- form 3 -----------------------------------------------------------------------------------------------------------


def _statements(read: cell.Cell, source: CellSource, namespace: dict[str, Any]) -> Request:
    """A request to run the cell's statements. Leading imports, functions and classes run in the notebook first."""
    __tracebackhide__ = True
    definitions, rest = cell.split_definitions(read.tree)
    whole = cell.compile_tree(ast.Module(list(rest.body), []), read.filename, "exec")
    exec(cell.compile_tree(definitions, read.filename, "exec"), namespace)
    if not rest.body:
        raise TpuMagicsError(
            "The cell under %%tpu_train has nothing to train.",
            "It only has imports and definitions, and its last statement is not a function.",
            "End the cell with the training function, or call the function in the cell.",
        )
    items = tuple(object_graph.objects_of_code(whole, namespace))
    before = dict(namespace)

    def make(models: dict[str, Any], hoists: hoist.HoistPlan | None) -> Work:
        return statements_work(rest, read.filename, namespace, before, models, hoists)

    packages = packages_of_tree(read.tree) | packages_of_code(whole, namespace)
    return Request("cell", make, items, hoistable=rest, source=source.text, packages=packages)


# -- scripts ----------------------------------------------------------------------------------------------------------


def _takes_the_rank(function: ast.FunctionDef) -> bool:
    """Whether it is an `_mp_fn(index)`. Others get their arguments under the script's `if __name__ == "__main__"`."""
    places = len(function.args.posonlyargs) + len(function.args.args)
    required = places - len(function.args.defaults)
    return function.name == "_mp_fn" and required <= 1 <= places + (function.args.vararg is not None)


def _script(path: str, argv: Sequence[str]) -> Request:
    file = Path(path).expanduser()
    try:
        text = read_regular(file)
        tree = ast.parse(text, str(file))
    except OSError as error:
        raise TpuMagicsError(
            f"The script {path} cannot be read: {error.strerror}.",
            f"The working directory is {working_folder()}.",
            "Give the path of the script relative to it, or an absolute path.",
        ) from error
    except SyntaxError as error:
        raise TpuMagicsError(
            f"The script {path} is not valid Python: {error.msg}, line {error.lineno}.", "", "Fix the script."
        ) from error
    except ValueError as error:  # null bytes, in Python 3.10 and 3.11
        raise TpuMagicsError(f"The script {path} is not valid Python: {error}.", "", "Fix the script.") from error
    has_mp_fn = any(isinstance(node, ast.FunctionDef) and _takes_the_rank(node) for node in tree.body)

    def make(models: dict[str, Any], _hoists: hoist.HoistPlan | None) -> Work:
        return ScriptWork(str(file.absolute()), tuple(argv), has_mp_fn, models)

    source = text.decode("utf-8", "replace")
    packages = packages_of_tree(tree)
    return Request(file.stem, make, source=source, script=file, argv=tuple(argv), packages=packages)
