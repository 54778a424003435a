"""`python -m tpu_magics preflight NOTEBOOK --function F --target T`: options, streams and exit code. Importing this is
quick.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.options import add_preflight

if TYPE_CHECKING:
    from tpu_magics.magics.file_program import PreflightCall
    from tpu_magics.preflight.report import Preflight

FITS, DOES_NOT_FIT, WRONG, INTERRUPTED = 0, 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", metavar="NOTEBOOK", help="a notebook (.ipynb) or a Python file (.py)")
    parser.add_argument(
        "--function",
        required=True,
        metavar="F",
        help="the training function; the cells up to its own are run first",
    )
    add_preflight(parser, required=True)
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="default: text")
    parser.add_argument(
        "--args",
        nargs="*",
        metavar="EXPR",
        help="arguments of the function: expressions, evaluated in the notebook; key=expr too (default: those in the "
        "notebook's own training)",
    )


def run(found: argparse.Namespace) -> int:
    """Run the command; returns the exit code: 0 fits every target, 1 does not fit, 2 no result."""
    try:
        with _standard_output_aside():
            result = _preflight_of(found)
    except KeyboardInterrupt as stopped:
        print(stopped if isinstance(stopped, TpuMagicsError) else "Interrupted.", file=sys.stderr)
        _show_so_far(stopped, found.format)
        return INTERRUPTED
    except TpuMagicsError as error:
        print(error, file=sys.stderr)
        return WRONG
    _show(_FORMATS[found.format](result))
    return _exit_code(result)


def _show(text: str) -> None:
    """What standard output cannot encode is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _show_so_far(stopped: BaseException, how: str) -> None:
    """What a search had found when it was interrupted."""
    result: Preflight | None = getattr(stopped, "found", None)
    if result is not None:
        _show(_FORMATS[how](result))


def _exit_code(result: Preflight) -> int:
    """A target without an answer (its compile was stopped, ...) counts before one that is too small."""
    if any(one.status == "failed" for one in result.results):
        return WRONG
    return FITS if result.fits else DOES_NOT_FIT


@contextmanager
def _standard_output_aside() -> Iterator[None]:
    """Standard output is for the result alone: what cells, the programs that they start, and the function print goes to
    standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _preflight_of(found: argparse.Namespace) -> Preflight:
    from tpu_magics.magics.file_program import call_of, program_of

    _check_early(found)
    with program_of(Path(found.file), found.function, _say) as program:
        call = call_of(program, found)
        os.environ.update(call.environment)
        return _preflight(call, found)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_early(found: argparse.Namespace) -> None:
    """Errors of the options, before the cells run for minutes."""
    from tpu_magics.launch.cell import parse_arguments
    from tpu_magics.launch.options import ALL_DEVICES, Options
    from tpu_magics.preflight import targets
    from tpu_magics.preflight.run import require_compiler

    targets.parse_all(found.target)
    Options(processes=found.processes, steps=found.steps, spmd=ALL_DEVICES if found.spmd else None).check()
    parse_arguments(found.args or ())
    require_compiler()


def _preflight(call: PreflightCall, found: argparse.Namespace) -> Preflight:
    from tpu_magics.launch.options import given_options
    from tpu_magics.panel.preflight_progress import TerminalLine
    from tpu_magics.preflight.options import PreflightOptions
    from tpu_magics.preflight.run import Callbacks, preflight

    line = TerminalLine(sys.stderr)
    own = {"precision": call.precision, "processes": call.processes, "spmd": call.spmd}
    options = {one.name: getattr(found, one.name) for one, _ in given_options(PreflightOptions)} | own
    try:
        return preflight(call.function, *call.args, kwargs=call.kwargs, callbacks=Callbacks(line.show, _say), **options)
    finally:
        line.close()


def _text(result: Preflight) -> str:
    from tpu_magics.panel.preflight import to_text

    return to_text(result)


def _json(result: Preflight) -> str:
    return json.dumps(result.to_dict(), indent=2)


_FORMATS: Mapping[str, Callable[[Preflight], str]] = {"text": _text, "json": _json}
