"""The name whose largest value is searched: an argument of the function, or a variable of the notebook."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError

__all__ = ["Size"]

LONGEST = 40  # characters of a value in an error


@dataclass(frozen=True)
class Size:
    """`name`, its value `now`; `signature`: of the function, if the name is one of its arguments; else `spaces`: the
    namespaces of the notebook and of the function's module."""

    name: str
    now: int
    signature: inspect.Signature | None
    spaces: tuple[dict[str, Any], ...]

    @classmethod
    def of(
        cls, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], namespace: dict[str, Any]
    ) -> Size:
        """Raises TpuMagicsError where there is no such name, its value is no whole number above 0, or the function does
        not take these arguments."""
        signature = _signature(function)
        if signature is not None and (name in signature.parameters or (name in kwargs and _takes_any(signature))):
            return cls(name, _whole(name, _argument(name, function, signature, args, kwargs)), signature, ())
        spaces = _distinct([namespace, getattr(inspect.unwrap(function), "__globals__", namespace)])
        holders = tuple(space for space in spaces if name in space)
        if not holders:
            raise _absent(name, signature)
        return cls(name, _whole(name, holders[-1][name]), None, holders)

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of the function; else the function reads a variable of the notebook."""
        return self.signature is not None

    @contextmanager
    def at(
        self, value: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments with another value; a name of the notebook has it until the block ends."""
        if self.signature is not None:
            yield _put(self.name, value, self.signature, args, kwargs)
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


# -- arguments --------------------------------------------------------------------------------------------------------


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _takes_any(signature: inspect.Signature) -> bool:
    """Whether it has a `**kwargs`."""
    return any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())


def _argument(
    name: str, function: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TpuMagicsError(
            f"{_named(function)}{signature} does not take these arguments: {error}.",
            f"Given: {len(args)} positional{''.join(f', {one}' for one in kwargs)}.",
            f"Give a value for each parameter, including {name}: the search starts at its value.",
        ) from None
    bound.apply_defaults()
    return kwargs[name] if name in kwargs else bound.arguments[name]


def _named(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _put(
    name: str, value: int, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if name in kwargs:
        return args, {**kwargs, name: value}
    bound = signature.bind(*args, **kwargs)
    bound.arguments[name] = value
    return bound.args, dict(bound.kwargs)


# -- errors -----------------------------------------------------------------------------------------------------------


def _absent(name: str, signature: inspect.Signature | None) -> TpuMagicsError:
    parameters = ", ".join(signature.parameters) if signature is not None else ""
    passed = (
        f" To pass it through **kwargs, add {name}=8 to the ARGs."
        if signature is not None and _takes_any(signature)
        else ""
    )
    return TpuMagicsError(
        f"--fit {name}: there is no such name.",
        f"It is neither a parameter of the function ({parameters or 'it has none'}) nor a variable of the notebook.",
        f"Give the argument or the notebook variable that holds the batch size.{passed}",
    )


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) > 0:
        return int(value)
    raise TpuMagicsError(
        f"--fit {name}: its value is {_brief(value)}.",
        "The search tries whole numbers above 0 and starts at the current value.",
        f"Set {name} to a batch size that works, for example 8, or give the name that holds the batch size.",
    )


def _brief(value: Any) -> str:
    """The repr of a number or a short text, else the type: a model's repr can have pages."""
    if value is None or isinstance(value, (bool, numbers.Number)) or (isinstance(value, str) and len(value) < LONGEST):
        return f"{value!r:.{LONGEST}}"
    return f"an object of type {type(value).__name__}"
