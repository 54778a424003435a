"""Failed collectives of a rehearsal: a rank that never entered, or ranks in different collectives.

On a TPU such a run hangs silently; in a rehearsal each rank records which collective it enters (rehearse/group.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base, hangs
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_WAITED = re.compile(r"waited ([\d.e+]+) s in (.*?), which not every rank entered")
_DOING = re.compile(r"in (.*?): ")
_CHECKSUM = re.compile(r" \[[0-9a-f]{8}\]")
_NOWHERE = "source line unknown"
_ON_TPU = "On a TPU the run would hang here."
_NO_BARRIER = "On a TPU the run would continue: dist.barrier() of torch_xla 2.9 does not wait."
_SAME = (
    "Make every rank call the same collectives the same number of times: move them out of `if rank == 0:`, and give "
    "all ranks the same number of batches (drop_last=True, accelerator.prepare for the loader)."
)


def never_entered(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A rank waited until the timeout of collectives."""
    if not _waited(outcome) or not any(base.error_type(one) == "CollectiveTimeout" for one in failure.outcomes):
        return None
    outcome = next(one for one in failure.outcomes if base.error_type(one) == "CollectiveTimeout")
    match = _WAITED.search(base.error_text(outcome))
    seconds = f"{match[1]} s" if match else "too long"
    doing = short(outcome).removeprefix("in ")
    waiting_ones = [one for one in failure.outcomes if _waited(one)]
    missing = [one for one in failure.outcomes if not _waited(one)]
    if not missing and len({short(one) for one in waiting_ones}) > 1:
        return _apart(failure, waiting_ones, seconds)
    who = base.ranks([one.rank for one in waiting_ones])
    late = f": {base.ranks([one.rank for one in missing])} never entered it" if missing else ""
    return Explanation(
        f"{who.capitalize()} waited {seconds} in {doing}{base.at(failure, outcome)}{late}.",
        f"{_positions(failure, waiting_ones, missing)} {_on_tpu(outcome) if missing else _LATE}",
        f"{_SAME} If that rank only needs more time (it compiles or saves), increase --collective-timeout."
        if missing
        else "Increase --collective-timeout.",
    )


def _apart(failure: Failure, outcomes: Sequence[WorkerOutcome], seconds: str) -> Explanation:
    """All ranks wait in collectives of different groups of ranks."""
    groups: dict[str, list[int]] = {}
    for one in outcomes:
        groups.setdefault(short(one), []).append(one.rank)
    said = "; ".join(f"{base.ranks(ranks)} {doing}" for doing, ranks in groups.items())
    return Explanation(
        f"All ranks waited for each other for {seconds}, in collectives of different groups of ranks.",
        f"{said[:1].upper()}{said[1:]}. {' '.join(_grouped(failure, outcomes))} {_ON_TPU}",
        "Pass the same `groups=` on every rank: the same lists, with the ranks in the same order.",
    )


_LATE = "All ranks entered it in the end, but the last one after the timeout."


def _on_tpu(outcome: WorkerOutcome) -> str:
    return _NO_BARRIER if short(outcome).startswith("in barrier") else _ON_TPU


def _waited(outcome: WorkerOutcome) -> bool:
    kind, text = base.error_type(outcome), base.error_text(outcome)
    return kind == "CollectiveTimeout" or (kind == "CollectiveBroken" and "different collectives" not in text)


def _positions(failure: Failure, waiting_ones: Sequence[WorkerOutcome], missing: Sequence[WorkerOutcome]) -> str:
    """Where the missing ranks are, then where the others wait, unless all wait at one line (already named)."""
    missing_at = list(_grouped(failure, missing))
    at = list(_grouped(failure, waiting_ones))
    return " ".join([*missing_at, *(at if len(at) > 1 else [])]).strip()


def _grouped(failure: Failure, outcomes: Sequence[WorkerOutcome]) -> Sequence[str]:
    groups: dict[str, list[int]] = {}
    for one in outcomes:
        where = base.at(failure, one).strip() if base.raised(one) else hangs.position(failure, one)
        groups.setdefault(where or _NOWHERE, []).append(one.rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [f"{base.ranks(who).capitalize()}: {where}." for where, who in ordered]


def different(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Ranks entered different collectives at the same time."""
    text = base.error_text(outcome)
    if base.error_type(outcome) != "CollectiveBroken" or "different collectives" not in text:
        return None
    said = _CHECKSUM.sub("", text.partition("different collectives: ")[2])
    alike = len({part.partition(": ")[2] for part in said.split("; ")}) == 1
    there = [one for one in failure.outcomes if base.raised(one)]
    return Explanation(
        "The ranks are in different collectives at the same time.",
        f"{said[:1].upper()}{said[1:]}{' with different arguments or shapes' if alike else ''}. "
        f"{' '.join(_grouped(failure, there))} On a TPU the run would hang or compute wrong results.",
        f"{_SAME} Tensors must have the same shape on all ranks (accelerator.pad_across_processes).",
    )


def left(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A rank had already returned when the others entered a collective."""
    gone = [one.rank for one in failure.outcomes if one.end and one.end.status in ("done", "limit")]
    if base.error_type(outcome) != "CollectiveBroken" or not gone:
        return None
    others = [one for one in failure.outcomes if _waited(one)]
    who = base.ranks([one.rank for one in others])
    had = "it had already returned" if len(gone) == 1 else "they had already returned"
    return Explanation(
        f"{who.capitalize()} waited {short(outcome)}{base.at(failure, outcome)} that "
        f"{base.ranks(gone)} never entered: {had}.",
        f"The ranks ran different numbers of steps, or only some of them reach that line. {_on_tpu(outcome)}",
        _SAME,
    )


def short(outcome: WorkerOutcome) -> str:
    """The collective in which a rank of a rehearsal failed, e.g. "in all_reduce of float32[1]"; else ""."""
    if base.error_type(outcome) not in ("CollectiveTimeout", "CollectiveBroken"):
        return ""
    text = base.error_text(outcome)
    waited, current = _WAITED.search(text), _DOING.search(text)
    doing = waited[2] if waited else current[1] if current else "a collective"
    return f"in {_CHECKSUM.sub('', doing)}"


EXPLAINERS = (never_entered, different, left)
