"""A record file for lists of runs: its lines are told apart by how they begin, and only the few that are shown are
parsed."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

from tpu_magics.runs.events import (
    EXPECTED_CAUSES,
    MOST_NAMES,
    VERSION,
    Compile,
    End,
    Event,
    Steps,
    Value,
    as_number,
    from_line,
)
from tpu_magics.runs.reader import Tail

MOST_SCANNED = 4_000_000  # bytes: four times what a rank records in 100,000 steps; of more, those at both ends


def _begin(kind: type[Event]) -> bytes:
    """How `to_line` begins the lines of a kind."""
    return b'{"v":%d,"kind":"%s",' % (VERSION, kind.kind.encode())


_VALUE, _STEPS, _COMPILE, _END = map(_begin, (Value, Steps, Compile, End))
_RECOMPILE = b'"recompile":true'  # in a text of a record the quotes are escaped
_EXPECTED = (b'"normal":true', *(b'"cause":"%s"' % cause.encode() for cause in EXPECTED_CAUSES))


class RecordScan:
    """What the records of a rank say in short. `steps`, `compiles`, `recompiles`: None where they do not say it.
    `expected`: how many of the recompiles every correct program has."""

    def __init__(self, path: Path) -> None:
        self._values: dict[bytes, list[bytes]] = defaultdict(list)
        compiles: list[bytes] = []
        steps = end = b""
        for line in Tail(path, MOST_SCANNED).lines():
            if line.startswith(_VALUE):
                self._values[line.partition(b'"name":"')[2].partition(b'"')[0]].append(line)
            elif line.startswith(_STEPS):
                steps = line
            elif line.startswith(_COMPILE):
                compiles.append(line)
            elif line.startswith(_END):
                end = line
        self.steps, self.compiles, self.recompiles = _counts(from_line(end), from_line(steps), compiles)
        self.expected = sum(_RECOMPILE in line and any(cause in line for cause in _EXPECTED) for line in compiles)

    def last_values(self) -> dict[str, float | int | str]:
        """The last value of each of the first names."""
        newest = [from_line(lines[-1]) for lines in list(self._values.values())[:MOST_NAMES]]
        return {value.name: value.value for value in newest if isinstance(value, Value)}

    def curve(self, name: str, most: int) -> tuple[float, ...]:
        """At most so many of the numbers that were logged under a name, evenly over the steps."""
        lines = next((each for each in self._values.values() if _name(each[-1]) == name), [])
        found = map(from_line, _spread(lines, most))
        numbers = (as_number(value.value) for value in found if isinstance(value, Value))
        # Four digits, which is more than a small drawing shows.
        return tuple(float(f"{number:.4g}") for number in numbers if number is not None)


def _counts(end: Event | None, steps: Event | None, compiles: list[bytes]) -> tuple[int | None, int | None, int | None]:
    """Steps, compiles and recompiles, as the rank counted them at its end, else as they were recorded so far."""
    if isinstance(end, End):
        return end.steps, end.compiles, end.recompiles
    recompiles = sum(_RECOMPILE in line for line in compiles)
    return steps.total if isinstance(steps, Steps) else None, len(compiles) or None, recompiles if compiles else None


def _name(line: bytes) -> str | None:
    value = from_line(line)
    return value.name if isinstance(value, Value) else None


def _spread(lines: list[bytes], most: int) -> list[bytes]:
    """The first thousand values have a record each, later records stand for more and more: evenly over the lines would
    show little but the beginning."""
    if len(lines) <= most:
        return lines
    steps = [_step(line) for line in lines]
    first, span = steps[0], steps[-1] - steps[0]
    if span <= 0:
        return [lines[at * (len(lines) - 1) // (most - 1)] for at in range(most)]
    wanted = (first + span * at / (most - 1) for at in range(most))
    return [lines[min(bisect_left(steps, step), len(lines) - 1)] for step in wanted]


def _step(line: bytes) -> int:
    digits = line.rpartition(b'"step":')[2].partition(b",")[0].rstrip(b"} \r")
    return int(digits) if digits.isdigit() and len(digits) < 20 else 0
