"""The options of a training, each declared once. The parser of %%tpu_train (magics/options.py), the keywords of
`tpu_magics.train` and their docs are made from here; those of WorkerOptions (backends/base.py) reach every worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tpu_magics.backends.base import WorkerOptions
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.launch.notebook import RunObserver
    from tpu_magics.runs.files import RunFiles

LONGEST = 1e9  # seconds
_Function = TypeVar("_Function", bound=Callable[..., Any])
# Values of Options.spmd: all devices, or the session's number; no SPMD, whatever the session has.
ALL_DEVICES, NO_SPMD = 0, -1
PRECISION_NAMES = ("fp32", "bf16", "bf16-downcast")


@dataclass(frozen=True)
class Declared:
    """How an option is given. `flags`: in a magic, () for none; `kind`: what its value is ("count", "seconds",
    "targets", "size", "flag", "words", "interval", "path", else text or one of `choices`); `help`: of the magic;
    `doc`: of the keyword, if that differs ("-": there is none)."""

    flags: tuple[str, ...]
    help: str
    doc: str = ""
    kind: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    def shared(self) -> dict[str, Any]:
        """All but the flags, for the same option of another class."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "flags"}


def option(default: Any, *flags: str, help: str, **more: Any) -> Any:  # noqa: A002 - as argparse has it
    """A field of a class of options that people give."""
    return field(default=default, metadata={"option": Declared(flags, help, **more)})


@dataclass(frozen=True)
class Options:
    """Options of a run; None: the session's default. `environment`: variables of the workers; `gate`: called with the
    request before anything forks, an exception stops the run; `observe`: makes one more observer of the run, besides
    the panel. How `jit`, `preflight` and `tensorboard` are followed: launch/strategies/in_process.py, magics/train.py;
    `resume`, `save_every`, `keep`: launch/resume/notebook.py."""

    processes: int | None = option(
        None,
        *("-n", "--processes"),
        kind="count",
        metavar="N",
        help="number of ranks (default: all TPU devices; 1 on XLA:CPU, where more ranks are a rehearsal)",
    )
    collective_timeout: float | None = option(
        None,
        "--collective-timeout",
        kind="seconds",
        metavar="S",
        help="in a rehearsal, stop the run when a rank has waited S seconds in a collective (default: 60)",
    )
    precision: str | None = option(
        None,
        "--precision",
        choices=PRECISION_NAMES,
        help="bf16: float and double become bfloat16 (TensorFlow: Keras' mixed_bfloat16); bf16-downcast: float becomes "
        "bfloat16, double float32",
        doc='"fp32", "bf16" or "bf16-downcast" (default: the session\'s)',
    )
    spmd: int | None = option(
        None,
        "--spmd",
        kind="flag",
        help="one worker that drives all devices as a mesh; on XLA:CPU 8 virtual ones, or those of %%tpu_init --spmd N",
        doc="one worker that drives this number of devices as a mesh (True: all, or the session's number; False: no "
        "SPMD, whatever the session has)",
    )
    hoist: str = option(
        "auto",
        "--hoist",
        choices=("auto", "off"),
        help="build models of the function once, in the notebook (default: auto)",
        doc='"auto" builds models of the function once, in the notebook; "off" does not',
    )
    output: str = option(
        "_tpu", "-o", "--output", metavar="NAME", help="the name that gets the result (default: _tpu)", doc="-"
    )
    background: bool = option(
        False,
        "--background",
        help="return at once; NAME.wait() loads the results",
        doc="return at once; `.wait()` loads the results",
    )
    steps: int | None = option(
        None,
        "--steps",
        kind="count",
        metavar="N",
        help="stop after N steps, with the notebook's models unchanged",
    )
    timeout: float | None = option(None, "--timeout", kind="seconds", metavar="S", help="stop the run after S seconds")
    force: bool = option(False, "--force", help="run even if there is not enough memory or disk (estimate)")
    max_recompiles: int | None = option(
        None,
        "--max-recompiles",
        kind="count",
        metavar="N",
        help="stop the run at recompile N+1 (expected ones are not counted), with the table of causes",
    )
    preflight: str | Sequence[str] | None = option(
        None,
        "--preflight",
        kind="targets",
        metavar="T",
        help="compile for this TPU first (v5e-8, ...), and do not start if the program does not fit",
        doc='the name of a TPU ("v5e-8"), or several: compile for it first, and do not start if the program does not '
        "fit",
    )
    strict: bool = option(
        False,
        "--strict",
        help="do not start if the code breaks a rule of XLA or of launching (%%tpu_check shows them), and fail if no "
        "step ran on the XLA device",
    )
    jit: str = option(
        "auto",
        "--jit",
        choices=("auto", "keep"),
        help="TensorFlow: compile steps with XLA on this machine and leave it to the strategy on a TPU (auto), or "
        "change nothing (keep)",
    )
    keep_partial: bool = option(
        False,
        "--keep-partial",
        help="after a failure, an interrupt or the time limit, keep the weights of the last step, not the old ones",
    )
    resume: bool = option(
        False,
        "--resume",
        help="go on from the newest checkpoint of this training in the place of %%tpu_init --checkpoints",
    )
    save_every: str | int | None = option(
        None,
        "--save-every",
        kind="interval",
        metavar="T",
        help="save a checkpoint there every T: a time (90s, 5m, 1h) or a number of steps (default: 5m)",
    )
    retries: int = option(
        0,
        "--retries",
        kind="count",
        metavar="N",
        help="start a run whose workers were killed, or whose host was lost, again from its newest checkpoint",
        doc="how often a run whose workers were killed, or whose host was lost, starts again from its newest "
        "checkpoint, on the hosts that are left",
    )
    keep: int | None = option(
        None, "--keep", kind="count", metavar="K", help="how many checkpoints are kept (default: 2)"
    )
    run_name: str | None = option(None, "--run-name", metavar="NAME", help="name of the run (default: the function's)")
    tensorboard: str | Path | None = option(  # noqa: RUF009
        None,
        "--tensorboard",
        kind="path",
        metavar="DIR",
        help="write logged values, step times and compiles to DIR for TensorBoard while the run goes on",
        doc="a folder: write logged values, step times and compiles there for TensorBoard while the run goes on",
    )
    plain: bool = option(
        False,
        "--plain",
        help="no panel; end with a summary without times, ids and sizes, for comparing",
        doc="show a summary without times, ids and sizes",
    )
    environment: Mapping[str, str] = field(default_factory=dict)
    gate: Callable[[Any, Options], None] | None = None
    observe: Callable[[RunFiles], RunObserver] | None = None

    def for_workers(self) -> dict[str, Any]:
        """The given options that reach the workers (WorkerOptions)."""
        found = {one.name: getattr(self, one.name) for one in fields(WorkerOptions)}
        return {name: value for name, value in found.items() if value is not None}

    def check(self) -> None:
        """Raise TpuMagicsError for invalid values."""
        devices = self.spmd if self.spmd not in (NO_SPMD, ALL_DEVICES) else None
        for name, value in (("-n", self.processes), ("--steps", self.steps), ("--spmd", devices)):
            if value is not None and value < 1:
                raise TpuMagicsError(
                    f"{name} {value} is not valid.", "The smallest value is 1.", f"Use {name} 1 or more, or omit it."
                )
        if self.max_recompiles is not None and self.max_recompiles < 0:
            raise TpuMagicsError(
                f"--max-recompiles {self.max_recompiles} is not valid.",
                "It is the number of recompiles that a run may have.",
                "Use --max-recompiles 0 or more, or omit it for no limit.",
            )
        for name, seconds in (("--timeout", self.timeout), ("--collective-timeout", self.collective_timeout)):
            if seconds is not None and not 0 < seconds < LONGEST:
                raise TpuMagicsError(
                    f"{name} {seconds:g} is not valid.",
                    f"It must be a number of seconds above 0 and below {LONGEST:,.0f}.",
                    f"Use {name} with a number of seconds, or omit it.",
                )
        if self.retries < 0 or (self.retries and self.background):
            raise TpuMagicsError(
                f"--retries {self.retries} is not valid{' with --background' if self.background else ''}.",
                "It is how often a run that was killed starts again, in the cell that waits for it.",
                "Use --retries 1 or more in a cell that waits, or omit it.",
            )
        if self.spmd not in (None, NO_SPMD) and self.processes is not None:
            raise TpuMagicsError(
                f"-n {self.processes} and --spmd cannot be combined.",
                "-n starts one process for each rank; --spmd drives all devices from a single process.",
                "Use only one of them.",
            )
        for one, declared in given_options():
            if declared.choices:
                check_choice(declared.flags[-1], getattr(self, one.name), declared.choices)


def given_options(cls: type = Options) -> list[tuple[Field[Any], Declared]]:
    """The options that people give, in the order of the help."""
    return [(one, one.metadata["option"]) for one in fields(cls) if "option" in one.metadata]


def made_options(**given: Any) -> Options:
    """Options with values as people give them. Raises TpuMagicsError for those that are not valid."""
    found = checked(Options, "tpu_magics.train", given)
    return Options(**{**found, "spmd": spmd_option(found.get("spmd"))})


_TEXT: tuple[tuple[type, ...], str] = ((str,), "a text")
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "count": ((Integral,), "a whole number"),
    "seconds": ((Real,), "a number of seconds"),
    "flag": ((bool, Integral), "True, False or a number"),
    "targets": ((str, Sequence), "the name of a TPU, or several"),
    "words": ((str, Sequence), "a text, or several"),
    "interval": ((str, Integral), "a time or a number of steps"),
    "path": ((str, Path), "a folder"),
}


def checked(cls: type, function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that `function` was called with, as options of the class. Raises TpuMagicsError for a name that is
    none, one that is missing, and a value of another type (a magic's words are read by its parser)."""
    known = {one.name: one for one in fields(cls)}
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise TpuMagicsError(
                f"{function} has no option {name}{f'; did you mean {near[0]}?' if near else '.'}",
                "Its keywords are its own options, not arguments of the function.",
                f"Pass keyword arguments of the function as a dict: {function}(f, ..., kwargs=dict({name}=...))",
            )
    found = dict(given)
    for one, declared in given_options(cls):
        if one.default is MISSING and one.name not in given:
            raise TpuMagicsError(
                f"{function} needs {one.name}.", f"{one.name}: {declared.doc}.", f"{function}(f, ..., {one.name}=...)"
            )
        if one.name in given:
            found[one.name] = _of_type(one, declared, given[one.name])
    return found


def _of_type(one: Field[Any], declared: Declared, value: Any) -> Any:
    is_bool = isinstance(one.default, bool)
    wanted, words = ((bool,), "True or False") if is_bool else _TYPES.get(declared.kind, _TEXT)
    if value is one.default or value == one.default:
        return value
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        text = f"{one.name}={value!r} is not valid."
        raise TpuMagicsError(text, f"{one.name} is {words}.", f"Give {words}, or omit it.")
    return value if isinstance(value, (bool, str)) or not isinstance(value, Integral) else int(value)


def with_keywords(cls: type) -> Callable[[_Function], _Function]:
    """A decorator of a function with `**options`, for help() and Tab: its signature has each option as a keyword, and
    its docstring a line for each in the place of OPTIONS."""

    def decorate(function: _Function) -> _Function:
        keywords = [(one, declared) for one, declared in given_options(cls) if declared.doc != "-"]
        lines = [f"{one.name}: {(declared.doc or declared.help).replace('%%', '%')}." for one, declared in keywords]
        text = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = text.replace("OPTIONS", "\n    ".join(lines))
        plain = inspect.signature(function)
        *own, _ = plain.parameters.values()
        cast(Any, function).__signature__ = plain.replace(
            parameters=[*own, *(_keyword(one) for one, _ in keywords)], return_annotation=plain.return_annotation
        )
        return function

    return decorate


def _keyword(one: Field[Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty if one.default is MISSING else one.default
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=one.type)


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Raise TpuMagicsError if the option has no such choice."""
    if value is not None and value not in choices:
        raise TpuMagicsError(
            f"{option} {value} is not valid.",
            f"The choices are: {', '.join(choices)}.",
            f"Use one of them for {option}.",
        )


def spmd_option(spmd: int | bool | None) -> int | None:
    """The value of Options.spmd for `tpu_magics.train(spmd=...)`. Raises TpuMagicsError for numbers below 1."""
    if spmd is None or isinstance(spmd, bool):
        return None if spmd is None else ALL_DEVICES if spmd else NO_SPMD
    if spmd < 1:
        raise TpuMagicsError(
            f"--spmd {spmd} is not valid.", "The smallest value is 1.", "Use --spmd 1 or more, or omit it."
        )
    return spmd
