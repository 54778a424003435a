"""What a search found, and what of it is proved.

What lives here: the result and its notes. What does not: the search (search.py), tables and plots (panel/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpu_magics.preflight.fit.points import NICE, FitPoint, Range, bracket, nice_sizes, stopped

__all__ = ["FitResult", "to_result"]


@dataclass(frozen=True)
class FitResult:
    """What fits one target. `largest`: the largest size that fits of those that were compiled; the next size does not
    fit, or the function itself fails with it, or nothing larger was to be tried: `notes` say which. `nice`: the largest
    multiple of 8 that fits, compiled; where several devices share the batch (SPMD), of 8 on each. Both are of one rank,
    under SPMD of all devices, and None where they are not known (`notes` say why). `points`: all that was tried for
    this target, in that order; `ranks`: of a training on this target; `devices`: that share one batch; `notes`: what
    was proved."""

    target: str
    name: str
    largest: int | None
    nice: int | None
    points: tuple[FitPoint, ...]
    ranks: int
    notes: tuple[str, ...]
    devices: int = 1


def to_result(
    target: str, name: str, ranks: int, points: Sequence[FitPoint], sizes: Range, failed: Mapping[int, str]
) -> FitResult:
    """The result of a search that is done. `failed`: sizes for which the function itself fails, and its errors."""
    low, _high = bracket(points, sizes)
    stop = stopped(points, sizes)
    known = stop is None and low > sizes.below
    nice = next((size for size in nice_sizes(low, sizes) if _status(points, size) == "fits"), None) if known else None
    notes = _stop(name, stop, low, sizes) if stop else _proof(name, points, sizes, failed)
    nicely = _nice(low, sizes) if known and nice is None else ()
    extra = (*_step(name, sizes, failed), *_not_monotone(name, points), *nicely)
    return FitResult(target, name, low if known else None, nice, tuple(points), ranks, (*notes, *extra), sizes.devices)


def _status(points: Sequence[FitPoint], size: int) -> str:
    return next((point.status for point in points if point.size == size), "")


# -- in words -------------------------------------------------------------------------------------------------------


def _stop(name: str, stop: FitPoint, low: int, sizes: Range) -> Iterator[str]:
    said = "was refused" if stop.status == "refused" else "gave no answer"
    yield f"The search ended early: the compile for {name} = {stop.size} {said}{_text(stop.error)}"
    if low > sizes.below:
        yield f"{name} = {low} fits; the largest that fits is not known."


def _proof(name: str, points: Sequence[FitPoint], sizes: Range, failed: Mapping[int, str]) -> Iterator[str]:
    low, high = bracket(points, sizes)
    if low <= sizes.below:
        yield f"Not even {name} = {high} fits (compiled)."
    elif high is None:
        yield f"{name} = {low} fits (compiled); nothing larger was tried."
    elif high in failed:
        yield f"{name} = {low} fits (compiled); for {high} the function itself fails{_text(failed[high])}"
    else:
        yield f"{name} = {low} fits, {high} does not: both were compiled."


def _step(name: str, sizes: Range, failed: Mapping[int, str]) -> Iterator[str]:
    if sizes.step > 1:
        size = next(size for size in sorted(failed) if size % sizes.step)
        yield (
            f"Only multiples of {sizes.step} were tried in the end: the function itself fails for {name} = {size}"
            f"{_text(failed[size])}"
        )


def _not_monotone(name: str, points: Sequence[FitPoint]) -> Iterator[str]:
    fits = [point.size for point in points if point.status == "fits"]
    large = [point.size for point in points if point.status == "too-large"]
    if fits and large and min(large) < max(fits):
        below = ", ".join(map(str, sorted(size for size in large if size < max(fits))))
        yield (
            f"{name} = {below} does not fit though {max(fits)} does: memory does not grow evenly with {name}, and a "
            f"larger one that was not tried may fit as well."
        )


def _nice(low: int, sizes: Range) -> Iterator[str]:
    tried = nice_sizes(low, sizes)
    known = f"none of {', '.join(map(str, tried))} fits" if tried else f"there is none up to {low}"
    yield f"No multiple of {NICE * sizes.devices} that fits is known: {known}."


def _text(error: str) -> str:
    """An error behind a clause, with a full stop."""
    return f": {error.rstrip('.')}." if error else "."
