"""Ranks that wait for each other: failed collectives, hanging runs, and runs that were stopped."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.launch import frames
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation
from tpu_magics.runs.events import STOPPED, Frame

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_COLLECTIVE = re.compile(
    r"Connection (?:closed|reset) by peer|\bgloo\b|\brendezvous\b|barrier.{0,80}timed out|Socket ?Timeout"
    r"|process group(?! has not been initialized)|Timed out waiting \d+ ?ms for|monitoredBarrier|TCPStore|\[c10d\]"
    r"|waiting for clients|client socket has timed out|coordination service",
    re.IGNORECASE,
)
# A KeyError or ValueError whose text contains one of these words comes from user code.
_COLLECTIVE_TYPES = re.compile(
    r"^(?:RuntimeError|TimeoutError|OSError|\w*Connection\w*Error|BrokenPipeError|Dist\w*Error|Xla\w*Error)$"
)
# Python's network errors also come from downloads: they count only if their text names a collective.
_NETWORK_TYPES = re.compile(r"^(?:TimeoutError|OSError|(?!Dist)\w*Connection\w*Error|BrokenPipeError)$")
_NAMED = re.compile(r"\bgloo\b|c10d|process group|barrier|rendezvous", re.IGNORECASE)
# Gloo prints this at its start; it is no error.
_LIBRARY_TALK = re.compile(r"^\[Gloo\] Rank .*$", re.MULTILINE)
_LIMIT = re.compile(r"Timed out waiting (\d+) ?ms|timed out after (\d+) ?ms|monitoredBarrier in (\d+) ?ms")
_MISSED = re.compile(r"Rank (\d+) failed to pass monitoredBarrier")
_JOINING = re.compile(r"waiting for clients|client socket has timed out|failed to connect", re.IGNORECASE)
_WAITING = re.compile(
    r"all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|broadcast(?!_)|collective_permute|mesh_reduce|rendezvous|barrier"
    r"|wait_for_everyone|wait_device_ops|mark_step|optimizer_step|^_?sync$|gather|^recv$",
    re.IGNORECASE,
)


def is_consequence(outcome: WorkerOutcome) -> bool:
    """Whether a worker failed in a collective, which only shows that another rank was missing."""
    if not base.raised(outcome):
        return outcome.signal == signal.SIGABRT and bool(
            _COLLECTIVE.search(_LIBRARY_TALK.sub("", base.evidence(outcome)))
        )
    if base.error_type(outcome) in ("CollectiveTimeout", "CollectiveBroken"):  # of a rehearsal (backends/base.py)
        return "different collectives" not in base.error_text(outcome)
    known = _COLLECTIVE_TYPES.match(base.error_type(outcome))
    return bool(known and _COLLECTIVE.search(base.error_text(outcome)))


# -- a collective failed, and no rank failed for another reason ---------------------------------------------------


def collective(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """No rank failed for another reason: one was late, missing, or had already returned."""
    text = base.evidence(outcome)
    if not is_consequence(outcome) or (_NETWORK_TYPES.match(base.error_type(outcome)) and not _NAMED.search(text)):
        return None
    left = [one.rank for one in failure.outcomes if one.end and one.end.status in ("done", "limit")]
    at = base.at(failure, outcome)
    said = base.line_with(_COLLECTIVE, base.without_addresses(text)) or base.one_line(text)
    return Explanation(
        f"Rank {outcome.rank} waited in a collective{at} that {_absent(text, left)}.",
        f"{_since(text)}{_why(text, left)} The error was: {said}",
        "Make every rank call the same collectives the same number of times: give all ranks the same number of batches "
        "(drop_last=True, accelerator.prepare for the loader) and move collectives out of `if rank == 0:`.",
    )


def _absent(text: str, left: Sequence[int]) -> str:
    missed = _MISSED.search(text)
    if left:
        return f"{base.ranks(left)} never entered: {'it' if len(left) == 1 else 'they'} had already returned"
    return f"rank {missed[1]} did not enter in time" if missed else "another rank never entered or had left"


def _since(text: str) -> str:
    match = _LIMIT.search(text)
    if not match:
        return ""
    milliseconds = int(next(group for group in match.groups() if group))
    return f"It waited {milliseconds / 1000:g} s. "


def _why(text: str, left: Sequence[int]) -> str:
    if left:
        return "The ranks ran different numbers of steps, or only some of them reach that line."
    if _JOINING.search(text):
        return "Not all ranks reached the start, where they connect to each other."
    return "No rank failed for another reason: the ranks ran different code, or one of them took too long."


# -- a run that was stopped ---------------------------------------------------------------------------------------


def timed_out(failure: Failure) -> tuple[int | None, Explanation]:
    """The rank that hangs (None: unknown), and the position of each rank."""
    hanging = _hanging(failure)
    after = f"after {failure.timeout:g} s (--timeout)" if failure.timeout else "because it hung"
    if not hanging:
        return None, Explanation(
            f"The run was stopped {after}.",
            f"{_positions(failure)} {base.UNCHANGED}",
            "If that line was still making progress, give the run more time with --timeout. Otherwise check what it "
            "waits for.",
        )
    verb = "hangs" if len(hanging) == 1 else "hang"
    who = base.ranks([one.rank for one in hanging])
    return hanging[0].rank, Explanation(
        f"The run was stopped {after}: {who} {verb} while the others wait.",
        f"{_positions(failure)} {base.UNCHANGED}",
        f"Check what {who} {'does' if len(hanging) == 1 else 'do'} at that line: every rank must call the same "
        "collectives the same number of times. Usual causes: an `if` on the rank, an endless loop, a lock.",
    )


def interrupted(failure: Failure) -> Explanation:
    """The user stopped the run: only the position of each rank."""
    return Explanation(
        "The run was interrupted.", f"{_positions(failure)} {base.UNCHANGED}", "Run the cell again to start over."
    )


def _hanging(failure: Failure) -> list[WorkerOutcome]:
    """The ranks at another position than the others: those outside a collective, else a minority."""
    if any(one.end is not None and one.end.status == STOPPED for one in failure.outcomes):
        return []  # a rank finished its step when it was told to stop
    stacks = {one.rank: base.stack_of(failure, one) for one in failure.outcomes if not _returned(one)}
    known = [one for one in failure.outcomes if stacks.get(one.rank)]
    outside = [one for one in known if not _waits_in(stacks[one.rank])]
    if 0 < len(outside) < len(known):
        return outside
    if len(outside) < len(known):  # all wait for each other, at different lines
        return _minority(known, stacks)
    return _minority(known, stacks) if len(known) > 2 else []


def _returned(outcome: WorkerOutcome) -> bool:
    return outcome.end is not None and outcome.end.status != STOPPED


def _minority(known: Sequence[WorkerOutcome], stacks: dict[int, tuple[Frame, ...]]) -> list[WorkerOutcome]:
    places = {one.rank: _spot(stacks[one.rank]) for one in known}
    counted = list(places.values())
    usual = next((spot for spot in counted if counted.count(spot) * 2 > len(counted)), None)
    return [one for one in known if usual is not None and places[one.rank] != usual]


def _spot(stack: Sequence[Frame]) -> tuple[str, int] | None:
    line = frames.last_user_frame(stack)
    return (line.path, line.line) if line else None


def _waits_in(stack: Sequence[Frame]) -> str:
    """The collective that a stack waits in, below the innermost user line; "" for none."""
    last = max((at for at, frame in enumerate(stack) if not frame.library), default=-1)
    return next((frame.function for frame in stack[last + 1 :] if _WAITING.search(frame.function)), "")


def _positions(failure: Failure) -> str:
    """One sentence for each position of ranks, the most common first."""
    groups: dict[str, list[int]] = {}
    for one in failure.outcomes:
        groups.setdefault(position(failure, one), []).append(one.rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return " ".join(f"{base.ranks(who).capitalize()}: {where}." for where, who in ordered)


def position(failure: Failure, outcome: WorkerOutcome) -> str:
    """The position of a rank as text."""
    if _returned(outcome):
        return "had already returned"
    stack = base.stack_of(failure, outcome)
    line = frames.last_user_frame(stack)
    if line is None:
        return "source line unknown (no stack was written)"
    waits = "" if outcome.end is not None else _waits_in(stack)  # one that was told to stop has finished its step
    return f"{base.at_line(line).strip()}{f', waiting in {waits}' if waits else ''}"


EXPLAINERS = (collective,)
