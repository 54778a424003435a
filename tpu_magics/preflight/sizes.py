"""The name whose largest value is searched: an argument of the function, or a name of the notebook.

What lives here: what it is now, and putting another value in its place for one trace. What does not: the search (fit/).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError


@dataclass(frozen=True)
class Size:
    """`name`, its value `now`; `signature`: of the function where the name is a parameter of it; else `spaces`: the
    names of the notebook, and of the module that the function is of."""

    name: str
    now: int
    signature: inspect.Signature | None
    spaces: tuple[dict[str, Any], ...]

    @classmethod
    def of(
        cls, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], namespace: dict[str, Any]
    ) -> Size:
        """Raises TpuMagicsError where there is no such name, or its value is no whole number above 0."""
        signature = _signature(function)
        if signature is not None and name in signature.parameters:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return cls(name, _whole(name, bound.arguments[name]), signature, ())
        spaces = _distinct([namespace, getattr(inspect.unwrap(function), "__globals__", namespace)])
        holders = tuple(space for space in spaces if name in space)
        if not holders:
            parameters = ", ".join(signature.parameters) if signature is not None else ""
            raise TpuMagicsError(
                f"--fit {name}: there is no such name.",
                f"It is no parameter of the function ({parameters or 'it has none'}), and no name of the notebook.",
                "Name the argument or the notebook's name that holds the batch size.",
            )
        return cls(name, _whole(name, holders[-1][name]), None, holders)

    @contextmanager
    def at(
        self, value: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments with another value; a name of the notebook has it until the block ends."""
        if self.signature is not None:
            bound = self.signature.bind(*args, **kwargs)
            bound.arguments[self.name] = value
            yield bound.args, dict(bound.kwargs)
            return
        before = [space[self.name] for space in self.spaces]
        try:
            for space in self.spaces:
                space[self.name] = value
            yield args, dict(kwargs)
        finally:
            for space, old in zip(self.spaces, before, strict=True):
                space[self.name] = old


def _distinct(spaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({id(space): space for space in spaces}.values())


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _whole(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise TpuMagicsError(
        f"--fit {name}: its value is {value!r:.60}.",
        "The search goes through whole numbers above 0, and starts at the value that the name has.",
        f"Give {name} a batch size that works, for example 8.",
    )
