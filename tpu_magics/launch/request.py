"""What a user wants to train: the function or cell, its arguments, and what it can reach."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.launch import (
    framework,
    hoist,
    object_graph,
    preconditions,
)
from tpu_magics.launch.work import FunctionWork, Work

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult

LONGEST_READ = 500_000  # characters: longer code contains data and is not searched for models or checked


@dataclass(frozen=True)
class Request:
    """What to train. `make(models, hoists)` returns the work; `items`: the objects that it can reach; `hoistable`: the
    function or tree to search for models (None: nothing); `script`: the script to run; `packages`: those that the code
    names; `launcher`: the launcher that the code called, "" for none; `program`: the step, if the framework lowered it
    in this process (None: a worker traces it)."""

    name: str
    make: Callable[[dict[str, Any], hoist.HoistPlan | None], Work]
    items: Sequence[tuple[str, Any]] = ()
    hoistable: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    cell: str = ""
    script: Path | None = None
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
    kwargs = dict(kwargs or {})
    arguments = preconditions.check_function(function, args, kwargs, index_first)
    named = {**_labelled(labels, args), **kwargs}
    names = _names_of_args(labels, list(arguments)[int(index_first) :], len(args))

    def make(models: dict[str, Any], hoists: hoist.HoistPlan | None) -> Work:
        return FunctionWork(function, tuple(args), kwargs, models, hoists, index_first, names)

    return Request(
        name=_name_of(function),
        make=make,
        items=tuple(object_graph.reachable_objects(function, {**named, **arguments})),
        hoistable=function,
        arguments=arguments,
        source=_source(function),
        packages=framework.packages_of_function(function),
        launcher=launcher,
    )


def _labelled(labels: Sequence[str], args: Sequence[Any]) -> dict[str, Any]:
    """The arguments whose ARG is a name, by that name."""
    return {label: arg for label, arg in zip(labels, args, strict=False) if label.isidentifier()}


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
