"""`%tpu_preflight` and `tpu_magics.preflight`: a function and the names of TPUs -> a preflight, and how it is shown."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.cell import parse_arguments
from tpu_magics.launch.options import given_options, with_keywords
from tpu_magics.magics import call_spec, lab
from tpu_magics.magics.call_spec import require_result_name
from tpu_magics.panel.messages import ProfileMessage
from tpu_magics.panel.preflight import to_html, to_text
from tpu_magics.panel.preflight_profile import line_problems
from tpu_magics.panel.preflight_progress import TerminalLine, progress_html, progress_text
from tpu_magics.preflight import report
from tpu_magics.preflight.compilation import CompileProgress
from tpu_magics.preflight.options import PreflightOptions
from tpu_magics.preflight.run import Callbacks, PreflightCheck, SearchInterrupted, preflight_check, require_compiler
from tpu_magics.preflight.run import preflight as find
from tpu_magics.preflight.targets import parse_all
from tpu_magics.preflight.variants import Axis, parse_mesh

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook


OUTPUT = "_preflight"


@with_keywords(PreflightOptions)
def preflight(
    function: Any, *args: Any, kwargs: Mapping[str, Any] | None = None, plain: bool = False, **options: Any
) -> PreflightResult:
    """What `%tpu_preflight` does: compile the steps of a training function for TPUs that are not attached.

    A forked worker (for TensorFlow, this process) traces the function and executes no step: a device-to-host read gives
    zero. The TPU compiler then compiles each distinct graph in a separate process.

    Args:
        function: a training function; or a tf.function, a Keras model or its `train_step`.
        args: its arguments.
        kwargs: its keyword arguments.
        plain: show no progress.
        OPTIONS

    Returns:
        The result: a notebook displays it, `print` gives it as text. `.fits`, `["v5e-8"].steady.memory.needed`
        (bytes), `["v5e-8"].roofline.seconds`, `["v5e-8"].profile.seconds`, `.export_profile("step.pb.gz")`,
        `.to_dict()`.

    Raises:
        TpuMagicsError: jax or libtpu is missing, the target is unknown, the function fails, never syncs, or gives
            another graph at every step.
        SearchInterrupted: the user stopped the search for `fit`; `.found` has the results so far.
    """
    call_spec.check_call(function, args, kwargs or {})
    with telling(plain) as tell:
        return _found(function, *args, kwargs=kwargs, telling=tell, bind=lambda _result: None, **options)


def _found(*args: Any, telling: Callbacks, bind: Callable[[PreflightResult], None], **options: Any) -> PreflightResult:
    """The result, bound to its name. If a search is interrupted, its results so far are bound and shown first."""
    try:
        result = shown(find(*args, callbacks=telling, **options))
    except SearchInterrupted as stopped:
        stopped.found = so_far = shown(stopped.found)
        bind(so_far)
        telling.found(so_far)
        raise
    bind(result)
    return result


def run(notebook: ShellNotebook, found: argparse.Namespace) -> None:
    """Evaluate FUNCTION and ARGs, bind the result to its name, and display it."""
    __tracebackhide__ = True
    for one in found.compare:
        Axis.of(one)  # which may have the function among its words
    for one in found.mesh:
        parse_mesh(one)
    if not found.args or not found.target:
        raise TpuMagicsError(
            f"%tpu_preflight needs {'FUNCTION' if not found.args else '--target'}.",
            "It compiles a training function for a TPU that is not attached.",
            "For example: %tpu_preflight training_function model --target v5e-8",
        )
    require_result_name(found.output)
    parse_all(found.target)
    require_compiler()
    positional, named = parse_arguments(found.args)
    _refuse_call(positional)
    values, keywords = call_spec.evaluate_call(positional, named, notebook.namespace)
    if not values:
        raise TpuMagicsError(
            "%tpu_preflight needs a function.",
            "Its first ARG is the training function.",
            "For example: %tpu_preflight training_function model --target v5e-8",
        )
    options = {one.name: getattr(found, one.name) for one, _ in given_options(PreflightOptions)}

    def bind(result: PreflightResult) -> None:
        notebook.namespace[found.output] = result
        if result.profiled:
            _tell_lab(result, notebook.cell_ids())

    options["spmd"] = found.spmd or None
    with telling(found.plain) as tell:
        tell.found(_found(*values, kwargs=keywords, telling=tell, bind=bind, **options))


def _tell_lab(result: PreflightResult, ids: Mapping[str, str]) -> None:
    """The shares of lines, for the extension, which shows them there."""
    if lab.current is not None:
        one = result.results[0]
        lines = tuple(line_problems(one, ids))
        lab.current.tell_or_keep(ProfileMessage(lines, f"{result.function} on {one.name}"))


def _refuse_call(positional: Sequence[str]) -> None:
    """A call in the place of the function would train here and now."""
    tree = ast.parse(positional[0], mode="eval").body if positional else None
    if not isinstance(tree, ast.Call) or ast.unparse(tree.func).split(".")[-1] == "partial":
        return
    name, words = ast.unparse(tree.func), [*map(ast.unparse, tree.args), *map(ast.unparse, tree.keywords)]
    raise TpuMagicsError(
        f"`{positional[0]}` is a call; it was not executed.",
        "%tpu_preflight takes the function itself, followed by its arguments: no step is executed.",
        f"Write %tpu_preflight {' '.join([name, *words])} --target ...; if the call returns a function, assign it to a "
        "name in an earlier cell.",
    )


# -- before a training -----------------------------------------------------------------------------------------------


def before_training(
    target: str | Sequence[str], plain: bool, namespace: dict[str, Any] | None = None
) -> PreflightCheck:
    """The gate of `%%tpu_train --preflight TARGET`, which shows its result, and binds it to its name."""

    @contextmanager
    def hearing() -> Iterator[Callbacks]:
        with telling(plain) as tell:

            def found(result: report.Preflight) -> None:
                if namespace is not None:
                    namespace[OUTPUT] = shown(result)
                tell.found(result)

            yield dataclasses.replace(tell, found=found)

    return preflight_check(target, hearing)


# -- the displays ---------------------------------------------------------------------------------------------------


DONE, WITHOUT = "The preflight is done.", "The preflight ended without a result."


class PreflightResult(report.Preflight):
    """A result that a notebook shows as tables and drawings, and `print` as text."""

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def shown(found: report.Preflight) -> PreflightResult:
    """The result as one that shows itself."""
    return PreflightResult(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


# -- progress ------------------------------------------------------------------------------------------------------


@contextmanager
def telling(plain: bool) -> Iterator[Callbacks]:
    """CompileProgress in one line of the notebook or terminal, which the result replaces; no progress with `plain`."""
    if plain:
        yield Callbacks(found=lambda found: _print(found, no_times=True))
    elif _has_front_end():
        with Output() as output:
            yield Callbacks(output.progress, output.line, output.result)
    else:
        yield from _in_terminal()


def _has_front_end() -> bool:
    """Whether this shell is a kernel's: libraries import ipykernel in terminals, too."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def _print(found: report.Preflight, no_times: bool = False) -> None:
    print(to_text(found, no_times=no_times), flush=True)


def _in_terminal() -> Iterator[Callbacks]:
    line = TerminalLine(sys.stderr)

    def result(found: report.Preflight) -> None:
        line.close()
        _print(found)

    try:
        yield Callbacks(line.show, lambda text: session.current.notebook.say(text), result)
    finally:
        line.close()


class Output:
    """One output of a cell: how it goes, and then the result in its place. Where there is none, or a function gives it
    as its value, a line says so: an output that is there cannot be taken back."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.settled = False

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.handle is not None and not self.settled:
            self._put({"text/plain": DONE if kind is None else WITHOUT})

    def progress(self, now: CompileProgress) -> None:
        self._put({"text/plain": progress_text(now), "text/html": progress_html(now)})

    def line(self, text: str) -> None:
        self._put({"text/plain": text, "text/html": _line(text)})

    def result(self, found: report.Preflight) -> None:
        self._put(shown(found)._repr_mimebundle_())
        self.settled = True

    def _put(self, bundle: Mapping[str, str]) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(dict(bundle), raw=True, display_id=True)
        else:
            self.handle.update(dict(bundle), raw=True)


def _line(text: str) -> str:
    from tpu_magics.panel.html_parts import say

    return f'<div class="tpu-magics-preflight" style="color:inherit">◐ {say(text)}</div>'
