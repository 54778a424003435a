"""The values logged under one name between two records."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from tpu_magics.runs.events import Value, number_text

Number = float | int | str

MAX_TEXT = 200
_LARGEST_INT = 2**53  # above it a browser reads another number


@dataclass
class Series:
    """What is known of one name.

    `count`: values so far; `singles`: those that got a record each; `line`: bytes of the last record. The other
    fields are about the `n` values that are held back: the last of them, and the range of the numbers among them.
    """

    count: int = 0
    singles: int = 0
    line: int = 150
    n: int = 0
    t: float = 0.0
    value: Number = 0.0
    step: int = 0
    low: float = math.inf
    high: float = -math.inf
    nan: bool = False

    def add(self, value: Number, step: int, t: float) -> None:
        self.count += 1
        self.n += 1
        self.t, self.value, self.step = t, value, step
        number = _number(value)
        if number is not None:
            self.nan = self.nan or math.isnan(number)
            self.low, self.high = _wider(self.low, self.high, number)

    def event(self, name: str, rank: int) -> Value:
        low, high = self._range() if self.n > 1 else (None, None)
        return Value(self.t, rank, name=name, value=self.value, step=self.step, n=self.n, low=low, high=high)

    def _range(self) -> tuple[Number | None, Number | None]:
        empty = self.low > self.high
        low = None if empty else number_text(self.low)
        high = None if empty else number_text(self.high)
        return ("nan" if empty else low, "nan") if self.nan else (low, high)

    def clear(self) -> None:
        self.n, self.low, self.high, self.nan = 0, math.inf, -math.inf, False


def plain_value(value: object) -> Number:
    """The value as a record holds it: a number, one of "nan", "inf", "-inf", or a text of at most 200 characters."""
    try:
        return _plain_number(value)
    except Exception:  # an object's own __float__ may raise anything
        return safe_text(value)


def _plain_number(value: object) -> Number:
    if isinstance(value, numbers.Integral):  # bools and NumPy's integers too
        number = int(value)
        return number if abs(number) <= _LARGEST_INT else float(number)
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("a text, even one that reads like a number")
    return number_text(float(value))  # type: ignore[arg-type]


def safe_text(value: object) -> str:
    """The text of any object, at most 200 characters, whatever its own code raises."""
    try:
        return str(value)[:MAX_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _number(value: Number) -> float | None:
    if not isinstance(value, str):
        return value
    return float(value) if value in ("nan", "inf", "-inf") else None


def _wider(low: float, high: float, number: float) -> tuple[float, float]:
    return (low, high) if math.isnan(number) else (min(low, number), max(high, number))
