"""The search for the largest size, `--fit NAME`: the name whose value is searched, the sizes that may be tried, the
points that were, and the result with notes about what is proved."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError

# -- points and results -----------------------------------------------------------------------------------------------


NICE = 8  # rows of a tile, on each device
NICE_TRIES = 4  # multiples of NICE below the largest size that are looked at
EXACT_BELOW = 4096  # a smaller size is settled to N and N + 1: there each row counts, and few compiles are left
TOLERANCE = 0.01  # of the size, from EXACT_BELOW on: exact to one row would cost a dozen compiles more


@dataclass(frozen=True)
class FitPoint:
    """The compile result of one size. `status`: "fits", "too-large", "refused" (the compiler does not accept the
    program) or "failed" (no answer, or the function itself fails for this size); `needed`, `available`: bytes of HBM;
    `seconds`: of the compiles; `graph`: the hash of the steady graph; `partial`: only the graph that needs most was
    compiled so far, and it fits."""

    size: int
    status: str
    needed: int | None = None
    available: int | None = None
    seconds: float | None = None
    error: str = ""
    graph: str = ""
    partial: bool = False


@dataclass(frozen=True)
class Range:
    """The sizes that may be tried: from `lowest` to `highest`, multiples of `step`, without those in `failed`, for
    which the function itself fails. `devices`: that share one size (SPMD). `tolerance`: the part of a size from
    EXACT_BELOW on to which it is settled."""

    lowest: int
    highest: int
    step: int = 1
    failed: frozenset[int] = frozenset()
    devices: int = 1
    tolerance: float = TOLERANCE

    @property
    def below(self) -> int:
        """The multiple of the step below all sizes."""
        return self.down(self.lowest - 1)

    @property
    def last(self) -> int:
        """The largest multiple of the step."""
        return self.down(self.highest)

    @property
    def unit(self) -> int:
        """What nice sizes are multiples of."""
        return math.lcm(NICE * self.devices, self.step)

    def gap(self, size: int) -> int:
        """How far above this size, which fits, the next one that does not may lie when the search ends."""
        return self.step if size < EXACT_BELOW else max(self.step, int(size * self.tolerance))

    def down(self, size: int) -> int:
        """The multiple of the step that is this size or the next one below."""
        return size // self.step * self.step

    def wall(self, size: int) -> int | None:
        """The first size above this one for which the function failed, of the multiples of the step."""
        return min((one for one in self.failed if one > size and one % self.step == 0), default=None)


def step_of(ran: Iterable[int], failed: Iterable[int]) -> int:
    """What the sizes that a function takes are multiples of, from those that it took and those for which it failed.

    The smallest step that all that ran are multiples of, and none that failed is. Where there is none, the function
    takes sizes up to a limit only: the smallest step for which all that failed are larger than all that ran, of these
    one that leaves a size to try between, if there is one. Else 1.
    """
    bad, good = sorted(failed), sorted(ran)
    if not bad or not good:
        return 1
    common = math.gcd(*good)
    steps = [step for step in range(1, common + 1) if common % step == 0]
    first = {step: next((size for size in bad if size % step == 0), None) for step in steps}
    free = [step for step, size in first.items() if size is None]
    limited = [step for step, size in first.items() if size is not None and size > good[-1]]
    open_ = [step for step in limited if (first[step] or 0) - good[-1] > step]
    return (free or open_ or limited or [1])[0]


def bracket(points: Iterable[FitPoint], sizes: Range) -> tuple[int, int | None]:
    """The largest size that fits (or the multiple of the step below all sizes), and the smallest one above it that is
    known not to fit or not to run."""
    found = list(points)
    low = max((point.size for point in found if point.status == "fits"), default=sizes.below)
    above = [point.size for point in found if point.status == "too-large" and point.size > low]
    wall = sizes.wall(low)
    return low, min([*above, *([] if wall is None else [wall])], default=None)


def whole(points: Iterable[FitPoint]) -> list[FitPoint]:
    """Points whose graphs were all compiled, and those that do not fit."""
    return [point for point in points if not point.partial]


def stopped(points: Iterable[FitPoint], sizes: Range) -> FitPoint | None:
    """The compile that was refused or gave no answer: the search for this target ends."""
    ends = ("refused", "failed")
    return next((one for one in points if one.status in ends and one.size not in sizes.failed), None)


def nice_sizes(largest: int, sizes: Range) -> Sequence[int]:
    """The nice sizes to look at, from the largest one that fits downwards."""
    first = largest // sizes.unit * sizes.unit
    found = [size for size in range(first, sizes.lowest - 1, -sizes.unit) if size not in sizes.failed]
    return found[:NICE_TRIES]


# -- the result -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FitResult:
    """What fits one target. `largest`: the largest size that fits of those that were compiled; `beyond`: the smallest
    above it that is known not to fit, or with which the function itself fails (None: nothing larger was to be tried, or
    there was no time). `exact`: nothing lies between the two, or above `largest` where there is no `beyond`; False
    where large sizes were settled to a tolerance, and where the search was cut short (`interrupted`). `nice`: the
    largest multiple of 8 up to `largest` that fits, compiled; where several devices share the batch (SPMD), of 8 on
    each. Sizes are of one rank, under SPMD of all devices, and None where they are not known (`notes` say why).
    `points`: all that was tried for this target, in that order; `ranks`: of a training on this target; `devices`: that
    share one batch; `notes`: what was proved."""

    target: str
    name: str
    largest: int | None
    nice: int | None
    points: tuple[FitPoint, ...]
    ranks: int
    notes: tuple[str, ...]
    devices: int = 1
    beyond: int | None = None
    exact: bool = True
    interrupted: bool = False

    @property
    def best(self) -> int | None:
        """The size to use: the nice one, else the largest. None: neither is known."""
        return self.nice if self.nice is not None else self.largest


def to_result(
    target: str,
    name: str,
    ranks: int,
    points: Sequence[FitPoint],
    sizes: Range,
    failed: Mapping[int, str],
    interrupted: bool = False,
) -> FitResult:
    """The result of a search that is finished or was interrupted. `failed`: sizes for which the function
    itself fails, and its errors."""
    low, high = bracket(whole(points), sizes)
    stop = stopped(points, sizes)
    known = stop is None and low > sizes.below
    nice = _largest_nice(points, low, sizes, interrupted) if known else None
    ends = low == sizes.last if high is None else high - low <= sizes.step
    return FitResult(
        target=target,
        name=name,
        largest=low if known else None,
        nice=nice,
        points=tuple(points),
        ranks=ranks,
        notes=tuple(_notes(name, points, sizes, failed, interrupted, lacks_nice=known and nice is None)),
        devices=sizes.devices,
        beyond=high if known else None,
        exact=known and ends and not interrupted,
        interrupted=interrupted,
    )


def _largest_nice(points: Sequence[FitPoint], low: int, sizes: Range, interrupted: bool) -> int | None:
    """The largest nice size that was compiled. An interrupted search has not tried those right below the largest."""
    fits = {point.size for point in whole(points) if point.status == "fits"}
    looked_at = sorted(fits, reverse=True) if interrupted else nice_sizes(low, sizes)
    return next((size for size in looked_at if size in fits and size % sizes.unit == 0), None)


# -- notes -------------------------------------------------------------------------------------------------------


def _notes(
    name: str,
    points: Sequence[FitPoint],
    sizes: Range,
    failed: Mapping[int, str],
    interrupted: bool,
    lacks_nice: bool,
) -> Iterator[str]:
    proved = whole(points)
    low, _high = bracket(proved, sizes)
    stop = stopped(points, sizes)
    if interrupted:
        yield from _cut_short(name, points, sizes)
    else:
        yield from _stop(name, stop, low, sizes) if stop else _proof(name, proved, sizes, failed)
    yield from _step(name, sizes, failed)
    yield from _not_monotone(name, proved)
    if lacks_nice and not interrupted:
        yield from _nice(low, sizes)


def _cut_short(name: str, points: Sequence[FitPoint], sizes: Range) -> Iterator[str]:
    low, high = bracket(whole(points), sizes)
    fits = f"{name} = {low} fits (compiled)" if low > sizes.below else f"no {name} is known to fit yet"
    above = "nothing larger was tried yet" if high is None else f"{high} does not"
    yield f"The search was interrupted: {fits}, {above}."
    most, _high = bracket(points, sizes)
    if most > low:
        yield f"With {name} = {most} the graph that needs most fits; the other graphs were not compiled yet."


def _stop(name: str, stop: FitPoint, low: int, sizes: Range) -> Iterator[str]:
    said = "was refused" if stop.status == "refused" else "gave no answer"
    yield f"The search ended early: the compile for {name} = {stop.size} {said}{_text(stop.error)}"
    if low > sizes.below:
        yield f"{name} = {low} fits; the largest that fits is unknown."


def _proof(name: str, points: Sequence[FitPoint], sizes: Range, failed: Mapping[int, str]) -> Iterator[str]:
    low, high = bracket(points, sizes)
    if low <= sizes.below:
        yield f"Not even {name} = {high} fits (compiled)."
    elif high is None:
        yield f"{name} = {low} fits (compiled); nothing larger was tried."
    elif high in failed:
        yield f"{name} = {low} fits (compiled); with {high} the function itself fails{_text(failed[high])}"
    else:
        yield f"{name} = {low} fits, {high} does not: both were compiled."
    if high is not None and low > sizes.below and high - low > sizes.step:
        yield (
            f"The largest {name} lies between {low:,} and {high:,}: sizes of {EXACT_BELOW:,} and more are searched to "
            f"{sizes.tolerance * 100:g} % only."
        )


def _step(name: str, sizes: Range, failed: Mapping[int, str]) -> Iterator[str]:
    if sizes.step > 1:
        size = next(size for size in sorted(failed) if size % sizes.step)
        yield (
            f"Only multiples of {sizes.step} were tried in the end: the function itself fails with {name} = {size}"
            f"{_text(failed[size])}"
        )


def _not_monotone(name: str, points: Sequence[FitPoint]) -> Iterator[str]:
    fits = [point.size for point in points if point.status == "fits"]
    large = [point.size for point in points if point.status == "too-large"]
    if fits and large and min(large) < max(fits):
        below = ", ".join(map(str, sorted(size for size in large if size < max(fits))))
        yield (
            f"{name} = {below} does not fit although {max(fits)} does: memory does not grow evenly with {name}, so a "
            f"larger one that was not tried may also fit."
        )


def _nice(low: int, sizes: Range) -> Iterator[str]:
    tried = nice_sizes(low, sizes)
    known = f"none of {', '.join(map(str, tried))} fits" if tried else f"there is none up to {low}"
    yield f"No multiple of {NICE * sizes.devices} is known to fit: {known}."


def _text(error: str) -> str:
    """An error behind a clause, with a full stop."""
    return f": {error.rstrip('.')}." if error else "."


# -- the name ---------------------------------------------------------------------------------------------------------


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
        cls,
        name: str,
        function: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        namespace: dict[str, Any],
        option: str = "--fit",
    ) -> Size:
        """Raises TpuMagicsError where there is no such name, its value is no whole number above 0, or the function does
        not take these arguments. `option`: that asks for it."""
        signature = _signature(function)
        if signature is not None and (name in signature.parameters or (name in kwargs and _takes_any(signature))):
            return cls(name, _whole(name, _argument(name, function, signature, args, kwargs), option), signature, ())
        spaces = _distinct([namespace, getattr(inspect.unwrap(function), "__globals__", namespace)])
        holders = tuple(space for space in spaces if name in space)
        if not holders:
            raise _absent(name, signature, option)
        return cls(name, _whole(name, holders[-1][name], option), None, holders)

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


def _absent(name: str, signature: inspect.Signature | None, option: str) -> TpuMagicsError:
    parameters = ", ".join(signature.parameters) if signature is not None else ""
    passed = (
        f" To pass it through **kwargs, add {name}=8 to the ARGs."
        if signature is not None and _takes_any(signature)
        else ""
    )
    return TpuMagicsError(
        f"{option} {name}: there is no such name.",
        f"It is neither a parameter of the function ({parameters or 'it has none'}) nor a variable of the notebook.",
        f"Give the argument or the notebook variable that holds the batch size.{passed}",
    )


def _whole(name: str, value: Any, option: str) -> int:
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) > 0:
        return int(value)
    raise TpuMagicsError(
        f"{option} {name}: its value is {_brief(value)}.",
        "Only whole numbers above 0 are tried, from the current value on.",
        f"Set {name} to a batch size that works, for example 8, or give the name that holds the batch size.",
    )


def _brief(value: Any) -> str:
    """The repr of a number or a short text, else the type: a model's repr can have pages."""
    if value is None or isinstance(value, (bool, numbers.Number)) or (isinstance(value, str) and len(value) < LONGEST):
        return f"{value!r:.{LONGEST}}"
    return f"an object of type {type(value).__name__}"
