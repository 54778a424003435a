"""Python values as JSON, within a size limit."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any


def plain(value: Any) -> Any:
    """Anything as JSON has it: dataclasses as objects with their field names, tuples as lists, and numbers that JSON
    has not as the texts "nan", "inf" and "-inf"."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in names(type(value))}
    if isinstance(value, Mapping):
        return {text_of(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return text_of(str(value))


def _not_finite(value: float) -> float | str:
    from tpu_magics.runs.events import number_text  # not at the top: %load_ext imports this module

    return number_text(value)


def text_of(text: str) -> str:
    """Half characters cannot be sent: UTF-8 has none."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


@cache
def names(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(cls))


def size_of(value: Any) -> int:
    """Bytes of a value that is JSON already."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def shortened(value: Mapping[str, Any], most: int) -> dict[str, Any]:
    """An object of at most so many bytes: the longest of its parts is halved, again and again."""
    parts = dict(value)
    if size_of(parts) <= most:
        return parts
    sizes = {name: size_of(part) + len(name) + 4 for name, part in parts.items()}
    while sum(sizes.values()) > most:
        name = max(sizes, key=lambda each: sizes[each])
        parts[name] = _halved(parts[name], sizes[name])
        smaller = size_of(parts[name]) + len(name) + 4
        if smaller >= sizes[name]:
            break  # numbers: there is nothing to take away
        sizes[name] = smaller
    return parts


def _halved(part: Any, size: int) -> Any:
    if isinstance(part, str):
        return part[: len(part) // 2] + "…" if len(part) > 2 else ""
    if isinstance(part, list):
        return part[: len(part) // 2]
    return shortened(part, size // 2) if isinstance(part, dict) else part
