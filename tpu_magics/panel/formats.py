"""Numbers, places and states in words: the forms that the whole panel shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpu_magics.runs.events import Compile, Input, Site

NOT_AVAILABLE = "n/a"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def not_available(reason: str) -> str:
    return f"{NOT_AVAILABLE} ({reason})"


def number(value: float | int | str) -> str:
    """A logged value, short."""
    if isinstance(value, str):
        return short(value, 80)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.6g}"
    return f"{value:.4g}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A short time: "850 µs", "41 ms", "1.93 s", "4 min 05 s"."""
    if not math.isfinite(value):
        return NOT_AVAILABLE
    if value >= 100:
        return clock(value)
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.3g} {unit}" if value else "0 s"
    return ""


def clock(value: float) -> str:
    """How long something has been going on: "8 s", "4 min 05 s", "2 h 04 min"."""
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def size(value: float) -> str:
    """Bytes: "512 MiB", "1.4 GiB"."""
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.{1 if unit >= 3 else 0}f} {_UNITS[unit]}"


def percent(share: float) -> str:
    """A share in percent that reads neither 0 nor 100 where it is not."""
    text = f"{100 * share:.0f}"
    if text == "0" and share > 0:
        return "less than 1 %"
    return "more than 99 %" if text == "100" and share < 1 else f"{text} %"


def short(text: object, most: int) -> str:
    """One line of at most `most` characters."""
    line = " ".join(str(text)[: 4 * most + 100].split())
    return line if len(line) <= most else line[: most - 1] + "…"


def cut(text: str, most: int) -> str:
    """At most `most` characters, its lines kept; what is left out is counted."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def place(site: Site) -> str:
    """E.g. "In [12], line 14"; of a file only its name."""
    name = site.path.rpartition("/")[2] or site.path
    return f"{short(name, 60)}, line {site.line}" if name else NOT_AVAILABLE


def full_place(site: Site) -> str:
    """A place with the whole path of its file."""
    return f"{short(site.path, 200)}, line {site.line}" if site.path else NOT_AVAILABLE


def label(graph: Compile) -> str:
    """Its number at its site: "#1"."""
    return f"#{graph.nth}"


def shape(one: Input) -> str:
    """E.g. "input_ids int64[32,129]"."""
    sizes = ",".join(short(each, 20) for each in one.shape[:16])
    return f"{short(one.name, 60)} {short(one.dtype, 20)}[{sizes}]"


def several(items: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are."""
    more = f", and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def rule_title(code: str, name: str) -> str:
    """A rule by its code and its name in words: "TPU303 changing number"."""
    return f"{short(code, 20)} {short(name, 60).replace('-', ' ')}".strip()
