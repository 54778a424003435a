"""The fields of run.json, checked: a value of the wrong type counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpu_magics.panel.rank_state import RankRecords

_LARGEST = 1e15  # seconds: more is no time


def device_name(plan: Mapping[str, Any], host: Mapping[str, Any], lead: RankRecords) -> str:
    """torch_xla's own name of a device ("xla:0") does not tell its kind; run.json does."""
    told = as_text(plan.get("device")) or as_text(host.get("device"))
    if not told and lead.start is not None and "cpu" in lead.start.device.lower():
        told = "CPU"
    if told == "CPU":
        return "XLA:CPU in a TPU's place" if as_text(plan.get("branch")) == "TPU" else "XLA:CPU"
    return told


def host_name(info: Mapping[str, Any], rank: int, worker: Mapping[str, Any]) -> str:
    """The name of a rank's host, "" where the run has one only. `worker`: its entry, which knows better on a TPU, where
    the runtime gives the ranks."""
    listed = info.get("hosts")
    hosts = [as_object(one) for one in listed] if isinstance(listed, (list, tuple)) else []
    own = [one for one in hosts if worker.get("host") is not None and one.get("index") == worker["host"]]
    own = own or [one for one in hosts if isinstance(one.get("ranks"), list) and rank in one["ranks"]]
    return as_text(own[0].get("name")) if own else ""


def as_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    return "" if value is None else str(value)


def as_texts(value: object) -> tuple[str, ...]:
    items = list(value) if isinstance(value, (list, tuple)) else []
    return tuple(as_text(item.get("name") if isinstance(item, dict) else item) for item in items)


def as_seconds(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return float(value) if known else None  # type: ignore[arg-type]


def as_count(value: object) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if known else None  # type: ignore[return-value]
