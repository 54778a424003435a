"""The call of a preflight from the command line: the function of a file, its arguments and options."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import arguments, session
from tpu_magics.launch.plan import NO_SPMD, Options
from tpu_magics.launch.request import check_function
from tpu_magics.magics.call_spec import parameter_text, required_parameters
from tpu_magics.magics.file_program import FileProgram
from tpu_magics.magics.training_stubs import SkippedTraining


@dataclass(frozen=True)
class PreflightCall:
    """A function and its arguments. `precision`, `processes`, `spmd` as in `%%tpu_train`; None and False: the
    session's; `environment`: variables that its launcher sets."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    processes: int | None = None
    spmd: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def call_of(program: FileProgram, found: argparse.Namespace) -> PreflightCall:
    """The function with the ARGs that were given, else with those that the file itself trains it with.

    Raises TpuMagicsError: the code fails, the function or an ARG is missing.
    """
    positional, named = arguments.parse_arguments(found.args or ())
    program.run()
    function = program.function()
    launch = program.launch_of(function)
    if found.args is None and launch is None and lacking(function, (), {}) and program.go_on():
        launch = program.launch_of(function)
    if found.args is not None:
        args, kwargs = arguments.evaluate_all(positional, named, program.namespace)
    else:
        args, kwargs = (list(launch.args), dict(launch.kwargs)) if launch else ([], {})
    _check(function, args, kwargs, found)
    return PreflightCall(function, args, kwargs, **_options(found, launch))


def _options(found: argparse.Namespace, launch: SkippedTraining | None) -> dict[str, Any]:
    """Those of the command line before those that the file trains the function with, and these before the session's.
    A file that asks for several ranks gets those of the target, as the launcher would give it there."""
    theirs = launch.options if launch else Options()
    one = 1 if theirs.processes == 1 else None
    return {
        "precision": found.precision or theirs.precision,
        "processes": found.processes or (None if found.spmd else one),
        "spmd": found.spmd or (found.processes is None and _is_spmd(theirs)),
        "environment": theirs.environment,
    }


def _is_spmd(options: Options) -> bool:
    if options.spmd is not None:
        return options.spmd != NO_SPMD
    return options.processes is None and session.current.spmd is not None


# -- the arguments --------------------------------------------------------------------------------------------------


def _check(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: argparse.Namespace) -> None:
    """Raise TpuMagicsError where the function cannot be called so."""
    missing = lacking(function, args, kwargs)
    if missing:
        raise TpuMagicsError(
            f"{found.function}{inspect.signature(function)} needs {_listed(missing)}.",
            "No --args were given, and no executed cell or call trains it with any."
            if found.args is None
            else f"--args gives {' '.join(found.args) or 'nothing'}.",
            "After --args, give an expression for each parameter, evaluated in the notebook: "
            f"--args {' '.join(map(parameter_text, required_parameters(inspect.signature(function))))}",
        )
    check_function(function, args, kwargs, index_first=False)


def lacking(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The parameters without a value. Raises TpuMagicsError for arguments that none takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one of C
        return []
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TpuMagicsError(
            f"{name}{signature} does not take these arguments: {error}.",
            f"Given: {len(args)} positional{''.join(f', {name}' for name in kwargs)}.",
            "After --args, give the arguments as in a call: --args model lr=1e-3",
        ) from None
    return [one.name for one in required_parameters(signature) if one.name not in bound.arguments]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
