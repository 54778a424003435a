"""`%tpu_preflight` and `tpu_magics.preflight`: a function and the names of TPUs -> what their compilers say.

What lives here: the way from a parsed line to preflight/run.py, and how progress and result show themselves. What does
not: the preflight.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import STEPS
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import arguments, session
from tpu_magics.panel.preflight import to_html, to_text
from tpu_magics.panel.preflight_progress import TerminalLine, progress_html, progress_text
from tpu_magics.preflight import installed, report
from tpu_magics.preflight.compiling import Progress
from tpu_magics.preflight.gate import Gate, gate
from tpu_magics.preflight.run import Telling
from tpu_magics.preflight.run import preflight as find
from tpu_magics.preflight.targets import parse_all

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook

OUTPUT = "_preflight"


class Preflight(report.Preflight):
    """A result that a notebook shows as tables and drawings, and `print` as text."""

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def preflight(
    function: Any,
    *args: Any,
    target: str | Sequence[str],
    kwargs: Mapping[str, Any] | None = None,
    fit: str | None = None,
    steps: int = STEPS,
    precision: str | None = None,
    processes: int | None = None,
    spmd: bool | None = None,
    force: bool = False,
    kept: bool = True,
    plain: bool = False,
) -> Preflight:
    """What `%tpu_preflight` does: compile the steps of a training function for TPUs that are not here.

    The function is traced in a forked worker, and no step of it is executed: what it reads from the device is zero.
    (A TensorFlow step is traced in this process, and not executed either.) Each distinct graph is then compiled by the
    TPU's own compiler, in a process of its own.

    Args:
        function: a training function; or a tf.function, a Keras model or its `train_step`.
        args: its arguments.
        target: names of TPUs, "v5e-8" or "v5litepod-8,v6e-1".
        kwargs: its keyword arguments.
        fit: the name of an argument, or of a name in the notebook: its largest value that fits is searched.
        steps: trace at most so many steps; it ends earlier where two successive graphs are equal.
        precision: "fp32", "bf16" or "bf16-downcast" (default: the session's).
        processes: ranks (default: those of the target).
        spmd: one process drives all devices of the target (default: as in the session).
        force: trace also where the forecast says that host memory will not do.
        kept: take results of earlier compiles, and keep these.
        plain: tell nothing of the progress.

    Returns:
        The result: it shows itself in a notebook, `print` gives it as text. `.fits`, `["v5e-8"].steady.memory.needed`
        (bytes), `["v5e-8"].roofline.seconds`, `.to_dict()`.

    Raises:
        TpuMagicsError: jax or libtpu is missing, the target is not known, the function fails, never syncs, or gives
            another graph at every step.
    """
    with telling(plain) as tell:
        return _found(
            function,
            *args,
            target=target,
            kwargs=kwargs,
            fit=fit,
            steps=steps,
            precision=precision,
            processes=processes,
            spmd=spmd,
            force=force,
            kept=kept,
            telling=tell,
        )


def _found(*args: Any, **options: Any) -> Preflight:
    return shown(find(*args, **options))


def shown(found: report.Preflight) -> Preflight:
    """The result as one that shows itself."""
    return Preflight(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


def run(notebook: ShellNotebook, found: argparse.Namespace) -> None:
    """Evaluate FUNCTION and ARGs, bind the result to its name, and display it."""
    __tracebackhide__ = True
    if not found.args or not found.target:
        raise TpuMagicsError(
            f"%tpu_preflight needs {'FUNCTION' if not found.args else '--target'}.",
            "It compiles a training function for a TPU that is not here.",
            "For example: %tpu_preflight training_function model --target v5e-8",
        )
    if not found.output.isidentifier():
        raise TpuMagicsError(
            f"-o {found.output} is not a name.", "It becomes a Python variable.", "Give -o an identifier."
        )
    parse_all(found.target)
    installed.versions()
    positional, named = arguments.parse_arguments(found.args)
    _refuse_call(positional)
    values, keywords = arguments.evaluate_all(positional, named, notebook.namespace)
    if not values:
        raise TpuMagicsError(
            "%tpu_preflight does not say which function.",
            "Its first ARG is the training function.",
            "For example: %tpu_preflight training_function model --target v5e-8",
        )
    names = ("target", "fit", "steps", "precision", "processes", "force")
    options = {name: getattr(found, name) for name in names}
    with telling(found.plain) as tell:
        result = _found(*values, kwargs=keywords, kept=not found.anew, spmd=found.spmd or None, telling=tell, **options)
        notebook.namespace[found.output] = result
        tell.found(result)


def _refuse_call(positional: Sequence[str]) -> None:
    """A call in the place of the function would train here and now."""
    tree = ast.parse(positional[0], mode="eval").body if positional else None
    if not isinstance(tree, ast.Call) or ast.unparse(tree.func).split(".")[-1] == "partial":
        return
    name, words = ast.unparse(tree.func), [*map(ast.unparse, tree.args), *map(ast.unparse, tree.keywords)]
    raise TpuMagicsError(
        f"`{positional[0]}` is a call, and it has not been made.",
        "%tpu_preflight takes the function itself, and its arguments behind it: no step is executed.",
        f"Write %tpu_preflight {' '.join([name, *words])} --target ...; a function that a call makes gets a name in an "
        "earlier cell.",
    )


# -- who hears how it goes ------------------------------------------------------------------------------------------


@contextmanager
def telling(plain: bool) -> Iterator[Telling]:
    """Who hears how it goes: a line of the notebook or of the terminal, in whose place the result stands at the end;
    nobody, where all is to be comparable."""
    if plain:
        yield Telling(found=lambda found: _print(found, no_times=True))
    elif _has_front_end():
        with Output() as output:
            yield Telling(output.progress, output.line, output.result)
    else:
        yield from _in_terminal()


def _has_front_end() -> bool:
    """Whether this shell is a kernel's: libraries import ipykernel in terminals, too."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def _print(found: report.Preflight, no_times: bool = False) -> None:
    print(to_text(found, no_times=no_times), flush=True)


def _in_terminal() -> Iterator[Telling]:
    line = TerminalLine(sys.stderr)

    def result(found: report.Preflight) -> None:
        line.close()
        _print(found)

    try:
        yield Telling(line.show, lambda text: session.current.notebook.say(text), result)
    finally:
        line.close()


class Output:
    """One output of a cell: how it goes, and then the result in its place. Without one, nothing is left to be seen."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.settled = False

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle is not None and not self.settled:
            self._put({})

    def progress(self, now: Progress) -> None:
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
    from tpu_magics.panel.sections_words import say

    return f'<div class="tpu-magics-preflight" style="color:inherit">◐ {say(text)}</div>'


def before_training(target: str | Sequence[str], plain: bool, namespace: dict[str, Any] | None = None) -> Gate:
    """The gate of `%%tpu_train --preflight TARGET`, which shows its result, and binds it to its name."""

    @contextmanager
    def hearing() -> Iterator[Telling]:
        with telling(plain) as tell:

            def found(result: report.Preflight) -> None:
                if namespace is not None:
                    namespace[OUTPUT] = shown(result)
                tell.found(result)

            yield dataclasses.replace(tell, found=found)

    return gate(target, hearing)
