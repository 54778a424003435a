"""What a user wants to train: the function or cell, its arguments, and what it can reach."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import hoist, object_graph, used_packages
from tpu_magics.launch.work import FunctionWork, Work

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult

LONGEST_READ = 500_000  # characters: longer code contains data and is not searched for models or checked


@dataclass(frozen=True)
class Request:
    """What to train. `make(models, hoists)` returns the work; `items`: the objects that it can reach; `hoistable`: the
    function or tree to search for models (None: nothing); `script`: the script to run, with `argv`; `packages`: those
    that the code names; `launcher`: the launcher that the code called, "" for none; `program`: the step, if the
    framework lowered it in this process (None: a worker traces it)."""

    name: str
    make: Callable[[dict[str, Any], hoist.HoistPlan | None], Work]
    items: Sequence[tuple[str, Any]] = ()
    hoistable: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    script: Path | None = None
    argv: tuple[str, ...] = ()
    packages: Collection[str] = ()
    launcher: str = ""
    program: TraceResult | None = None

    @property
    def folder_name(self) -> str:
        """The name, in characters that a folder name may have."""
        return "".join(char if char.isalnum() or char in "-_." else "-" for char in self.name).lstrip(".")[:40] or "run"


def function_request(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    index_first: bool = False,
    labels: Sequence[str] = (),
    launcher: str = "",
) -> Request:
    """A request to train a function. `labels`: the ARGs as written; `launcher`: the launcher that was called with
    it."""
    if not isinstance(kwargs or {}, Mapping):
        raise TpuMagicsError(
            f"kwargs={kwargs!r} is not valid.", "It is a dict of keyword arguments.", "For example: kwargs=dict(lr=0.1)"
        )
    kwargs = dict(kwargs or {})
    arguments = check_function(function, args, kwargs, index_first)
    named = {label: arg for label, arg in zip(labels, args, strict=False) if label.isidentifier()}
    names = _names_of_args(labels, list(arguments)[int(index_first) :], len(args))

    def make(models: dict[str, Any], hoists: hoist.HoistPlan | None) -> Work:
        return FunctionWork(function, tuple(args), kwargs, models, hoists, index_first, names)

    return Request(
        name=_name_of(function),
        make=make,
        items=tuple(object_graph.reachable_objects(function, {**named, **kwargs, **arguments})),
        hoistable=function,
        arguments=arguments,
        source=_source(function),
        packages=used_packages.packages_of_function(function),
        launcher=launcher,
    )


def _names_of_args(labels: Sequence[str], parameters: Sequence[str], count: int) -> tuple[str, ...]:
    """A name for each argument: the ARG if it is a name, else the parameter."""
    written = dict(enumerate(label for label in labels))
    known = dict(enumerate(parameters))
    return tuple(
        written[i] if written.get(i, "").isidentifier() else known.get(i, f"argument {i}") for i in range(count)
    )


def _name_of(function: Any) -> str:
    name = str(getattr(function, "__name__", "") or type(function).__name__)
    return name.strip("<>") or "function"


def _source(function: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def check_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], index_first: bool) -> dict[str, Any]:
    """Check that `function` accepts these arguments. Returns them by parameter, defaults applied."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise TpuMagicsError(
            f"`{name}` is not a function.",
            f"Its type is {type(function).__name__}.",
            "Use a function that takes the model (or nothing) and trains it.",
        )
    _refuse_kinds(function, name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {str(i): arg for i, arg in enumerate(args)} | dict(kwargs)
    try:
        bound = signature.bind(*((0,) if index_first else ()), *args, **kwargs)
    except TypeError as problem:
        given = f"{len(args)} positional" + (f" and {', '.join(kwargs)}" if kwargs else "")
        needed = _needed(signature)
        call = f"tpu_magics.train({', '.join([name, *needed])})"
        raise TpuMagicsError(
            f"{name}{signature} does not accept these arguments: {problem}.",
            f"Given: {given}" + (", after the process index" if index_first else "") + ".",
            f"Give one for each parameter: %%tpu_train {' '.join(needed)}".rstrip() + f", or {call}",
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _needed(signature: inspect.Signature) -> list[str]:
    forms = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "{0}", inspect.Parameter.KEYWORD_ONLY: "{0}={0}"}
    needed = [one for one in signature.parameters.values() if one.default is one.empty]
    return [forms[one.kind].format(one.name) for one in needed if one.kind in forms]


def _refuse_kinds(function: Any, name: str) -> None:
    inner = inspect.unwrap(function)
    kinds = (
        (inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner), "an async function"),
        (inspect.isgeneratorfunction(inner), "a generator function (it contains yield)"),
    )
    for refused, kind in kinds:
        if refused:
            raise TpuMagicsError(
                f"`{name}` is {kind}, which cannot be trained.",
                "Calling it does not run its body.",
                "Change it to a normal function that trains and returns.",
            )
