"""The result of a search, with notes about what is proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpu_magics.preflight.search.points import EXACT_BELOW, NICE, FitPoint, Range, bracket, nice_sizes, stopped

__all__ = ["FitResult", "to_result"]


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
    low, high = bracket(points, sizes)
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
    fits = {point.size for point in points if point.status == "fits"}
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
    low, _high = bracket(points, sizes)
    stop = stopped(points, sizes)
    if interrupted:
        yield from _cut_short(name, points, sizes)
    else:
        yield from _stop(name, stop, low, sizes) if stop else _proof(name, points, sizes, failed)
    yield from _step(name, sizes, failed)
    yield from _not_monotone(name, points)
    if lacks_nice and not interrupted:
        yield from _nice(low, sizes)


def _cut_short(name: str, points: Sequence[FitPoint], sizes: Range) -> Iterator[str]:
    low, high = bracket(points, sizes)
    fits = f"{name} = {low} fits (compiled)" if low > sizes.below else f"no {name} is known to fit yet"
    above = "nothing larger was tried yet" if high is None else f"{high} does not"
    yield f"The search was interrupted: {fits}, {above}."


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
