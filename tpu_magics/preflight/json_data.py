"""Dataclasses of a preflight as plain JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

_HEAVY = {"module", "places"}  # megabytes of a program, and its lines by number


def json_data(value: Any) -> Any:
    """Plain JSON data of a dataclass, without the programs in it."""
    return _without_modules(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _without_modules(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_modules(found) for name, found in value.items() if name not in _HEAVY}
    return [_without_modules(one) for one in value] if isinstance(value, (list, tuple)) else value
