"""`%%tpu_train` and `%tpu_train`: words -> a run -> its summary."""

from __future__ import annotations

import argparse
import shlex
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError, TrainingInterrupted, plural
from tpu_magics.launch import session
from tpu_magics.launch import train as launcher
from tpu_magics.launch.notebook import RunObserver
from tpu_magics.launch.options import Options, given_options, made_options, with_keywords
from tpu_magics.launch.request import function_request
from tpu_magics.launch.results import TrainResult
from tpu_magics.magics.call_spec import require_result_name
from tpu_magics.magics.options import MagicParser
from tpu_magics.panel.findings import codes, headline, recorded_finding
from tpu_magics.panel.runs import plain_summary, rehearsal
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.origin import is_library

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook


def read(parser: MagicParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options and ARGs. Words after a script's name belong to the script."""
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if script is not None and parser.prog == "%tpu_train":
        return parser.read(words[:script]), list(words[script:])
    found = parser.read(words)
    return found, list(found.args)


def run(notebook: ShellNotebook, found: argparse.Namespace, args: Sequence[str], line: str, cell: str | None) -> None:
    """Train, bind the result to its name (also after a failure, for its records), and print the outcome."""
    __tracebackhide__ = True
    of_function = () if any(word.endswith(".py") for word in args[:1]) else args
    require_result_name(found.output, of_function if found.output != "_tpu" else ())
    before = session.current.last
    try:
        _run(notebook, found, args, line, cell)
    except KeyboardInterrupt as error:
        of_cell = any(not is_library(one.f_code.co_filename) for one, _ in traceback.walk_tb(error.__traceback__))
        if isinstance(error, TpuMagicsError) or session.current.last is not before or of_cell:
            raise
        raise TrainingInterrupted(
            "The cell was interrupted before its run started.", "No rank had started.", "Run the cell again."
        ) from None


def _run(notebook: ShellNotebook, found: argparse.Namespace, args: Sequence[str], line: str, cell: str | None) -> None:
    __tracebackhide__ = True
    before = session.current.last
    gate = preflight_first(found.preflight, found.plain, notebook.namespace)
    observe = for_tensorboard(found.tensorboard, None if found.plain else notebook.say)
    try:
        result = _train(notebook, _followed(_options(found), gate, observe), args, line, cell)
    finally:
        if session.current.last is not before:
            notebook.namespace[found.output] = session.current.last
    if result is not None and not found.background:
        show_outcome(result, notebook.say, plain=found.plain, panel=notebook.has_panel(result.run))


def preflight_first(
    target: str | Sequence[str] | None, plain: bool, namespace: dict[str, Any] | None = None
) -> Callable[[Any, Options], None] | None:
    """The gate of --preflight; nothing of the preflight is imported without it."""
    if target is None:
        return None
    from tpu_magics.magics.preflight import before_training

    return before_training(target, plain, namespace)


def for_tensorboard(
    folder: str | Path | None, say: Callable[[str], None] | None = None
) -> Callable[[RunFiles], RunObserver] | None:
    """The observer of --tensorboard, which `say`s where it writes. Raises TpuMagicsError where it cannot."""
    if folder is None:
        return None
    from tpu_magics.panel.tensorboard import check_folder, event_files

    place = check_folder(folder)

    def observe(run: RunFiles) -> RunObserver:
        if say is not None:
            say(f"TensorBoard shows this run with: tensorboard --logdir {shlex.quote(str(folder))}")
        return event_files(run, place)

    return observe


@with_keywords(Options)
def train(
    function: Callable[..., Any], *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> TrainResult:
    """Train `function(*args, **kwargs)` on every rank, as `%%tpu_train` does.

    Args:
        function: the training function; models among its arguments and globals are updated in the notebook.
        args: its arguments, evaluated in the notebook and inherited by the workers.
        kwargs: its keyword arguments.
        OPTIONS

    A TensorFlow function trains in this process, inside `strategy.scope()`.

    Raises:
        TpuMagicsError: the run cannot start.
        TrainingFailed: a worker failed; the notebook's models are unchanged.
    """
    __tracebackhide__ = True
    found = made_options(**options)
    gate, observe = preflight_first(found.preflight, found.plain), for_tensorboard(found.tensorboard)
    return launcher.start(function_request(function, args, kwargs), _followed(found, gate, observe))


def _followed(
    options: Options,
    gate: Callable[[Any, Options], None] | None,
    observe: Callable[[RunFiles], RunObserver] | None,
) -> Options:
    """With what --preflight and --tensorboard do, besides what was given."""
    return replace(options, gate=gate or options.gate, observe=observe or options.observe)


def _options(found: argparse.Namespace) -> Options:
    given = {one.name: getattr(found, one.name) for one, _ in given_options()}
    return made_options(**{**given, "spmd": found.spmd or None})


def _train(
    notebook: ShellNotebook, options: Options, args: Sequence[str], line: str, cell: str | None
) -> TrainResult | None:
    __tracebackhide__ = True
    if cell is None:
        words = notebook.expanded(args) if args and args[0].endswith(".py") else args
        return launcher.train_function(words, options)
    if not cell.strip():
        raise TpuMagicsError(
            "The cell under %%tpu_train is empty.",
            "%%tpu_train trains a function or statements of its cell.",
            "Write the training function below %%tpu_train, or use %tpu_train FUNCTION for an existing one.",
        )
    return launcher.train_cell(notebook.source(line, cell), args, options)


# -- the outcome ----------------------------------------------------------------------------------------------------


def show_outcome(result: TrainResult, say: Callable[[str], None], plain: bool, panel: bool = False) -> None:
    """Say how the run ended; below a panel, only what it means for the notebook."""
    if plain:
        print(plain_summary(result.run), flush=True)
        return
    say(below_panel(result) if panel else one_line(result))
    if not panel and (rules := rules_line(result)):
        say(rules)


def rules_line(result: TrainResult) -> str:
    """The broken rules that %tpu_panel would show, where no panel shows them; "" where there are none."""
    from tpu_magics.panel.page_problems import told_findings
    from tpu_magics.panel.run_state import SharedView

    if not result.run.events("finding"):
        return ""
    found = [recorded_finding(one) for one in told_findings(SharedView(RunFiles(result.run.path)).view())]
    if not found:
        return ""
    return f"{headline(found)} in the code: {codes(found)}. %tpu_panel shows where and why."


def below_panel(result: TrainResult) -> str:
    """E.g. "training_function: done; updated in the notebook: model"."""
    return f"{result.run.name}: {result.status}; {_updated(result)}"


def one_line(result: TrainResult) -> str:
    """E.g. "training_function: done, rehearsal of 8 ranks on XLA:CPU, 57 steps in 8.2 s, 4 compiles; ...".."""
    summary = result.run.summary()
    device = str(result.run.info.get("plan", {}).get("device", ""))
    kind = {"rehearsal": "rehearsal of ", "SPMD": "SPMD, "}.get(rehearsal(result.run.info), "")
    parts = [f"{kind}{plural(len(summary.ranks), 'rank')} on {'XLA:CPU' if device == 'CPU' else device}"]
    if summary.steps is not None:
        parts.append(f"{plural(summary.steps, 'step')} in {summary.seconds or 0:.1f} s")
    if summary.compiles is not None:
        parts.append(plural(summary.compiles, "compile"))
    return f"{summary.name}: {summary.status}, {', '.join(parts)}; {_updated(result)}"


def _updated(result: TrainResult) -> str:
    if result.status == "stopped":
        return "--steps was reached, the notebook's models are unchanged"
    names = result.run.summary().models
    if names:
        return f"updated in the notebook: {', '.join(names)}"
    if result.made:  # the cell built it, and it was not hoisted
        return f"set in the notebook: {', '.join(result.made)}"
    return "no weights of the notebook were changed" if result.models else "no model to update"
