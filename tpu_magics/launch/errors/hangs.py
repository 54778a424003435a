"""Ranks that wait for each other, and runs that were stopped: failed collectives, hanging runs, interrupts, the time
limit and --max-recompiles.

On a TPU ranks in different collectives hang silently; in a rehearsal each rank records which one it enters
(torch/rehearsal/group.py).
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpu_magics.launch import stacks
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation
from tpu_magics.launch.errors.failure import DEVICE_RUNS
from tpu_magics.runs.events import CAUSES, STOPPED, Compile, Frame, only
from tpu_magics.runs.reader import Run

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
    known, text = _COLLECTIVE_TYPES.match(base.error_type(outcome)), base.error_text(outcome)
    return bool(known and _COLLECTIVE.search(text) and "DataLoader worker" not in text)  # whose own connection it was


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


# -- a wait for what nobody can do ------------------------------------------------------------------------------


def waits_forever(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A rank waited for something that no thread of its process could do."""
    if base.error_type(outcome) != "WaitsForever":
        return None
    text = base.error_text(outcome)
    inherited = "only the notebook has" in text
    return Explanation(
        f"Rank {outcome.rank} waits forever{base.at(failure, outcome)}.",
        f"{text} {_FORKED if inherited else _NOBODY} {base.UNCHANGED}",
        "Make the object, and start its thread, in the training function."
        if inherited
        else "Make the object that it waits for in the training function, with the thread that serves it; or release "
        "the lock before the run.",
    )


_FORKED = "A worker is a fork of the notebook's process, and a fork has none of its other threads."
_NOBODY = (
    "All threads of the process wait, without a time limit. If a thread of the notebook would have ended the wait: a "
    "worker is a fork of the notebook's process, and has none of its threads."
)


# -- a run that was stopped ---------------------------------------------------------------------------------------


def timed_out(failure: Failure) -> tuple[int | None, Explanation]:
    """The rank that hangs (None: unknown), and the position of each rank."""
    hanging = _hanging(failure)
    after = f"after {failure.timeout:g} s (--timeout)" if failure.timeout else "because it hung"
    if not hanging:
        return None, Explanation(
            f"The run was stopped {after}.",
            f"{_positions(failure)} {base.UNCHANGED}",
            "Give the run more time with --timeout: the device takes longer than the function, which waits for nothing."
            if any(one.after == DEVICE_RUNS for one in failure.outcomes if one.end is None)
            else "End the threads and processes that the function starts before it returns, or give the run more time "
            "with --timeout."
            if any(one.after for one in failure.outcomes if one.end is None)
            else "If that line was still making progress, give the run more time with --timeout. Otherwise check what "
            "it waits for.",
        )
    verb = "hangs" if len(hanging) == 1 else "hang"
    who = base.ranks([one.rank for one in hanging])
    return hanging[0].rank, Explanation(
        f"The run was stopped {after}: {who} {verb} while the others wait.",
        f"{_positions(failure)} {base.UNCHANGED}",
        f"Check what {who} {'does' if len(hanging) == 1 else 'do'} at that line: every rank must call the same "
        "collectives the same number of times. Usual causes: an `if` on the rank, an endless loop, a lock.",
    )


KEPT_PARTLY = "With --keep-partial an interrupted run keeps its training so far."


def interrupted(failure: Failure) -> Explanation:
    """The user stopped the run: only the position of each rank."""
    return Explanation(
        "The run was interrupted.",
        f"{_positions(failure)} {base.UNCHANGED}",
        f"Run the cell again to start over. {KEPT_PARTLY * (failure.can_keep and not failure.hosts)}".strip(),
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
    line = stacks.last_user_frame(stack)
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
    line = stacks.last_user_frame(stack)
    if outcome.after and outcome.end is None:
        at = f" ({base.at_line(line).strip()})" if line is not None else ""
        return f"{outcome.after[0].lower()}{outcome.after[1:]}{at}"
    if line is None:
        why = "the innermost calls are all of libraries" if stack else "no stack was written"
        return f"source line unknown ({why})"
    waits = "" if outcome.end is not None else _waits_in(stack)  # one that was told to stop has finished its step
    return f"{base.at_line(line).strip()}{f', waiting in {waits}' if waits else ''}"


# -- a rehearsal's collectives ----------------------------------------------------------------------------------------


_WAITED = re.compile(r"waited ([\d.e+]+) s in (.*?), which not every rank entered")
_DOING = re.compile(r"in (.*?): ")
_CHECKSUM = re.compile(r" \[[0-9a-f]{8}\]")
_NOWHERE = "source line unknown"
_ON_TPU = "On a TPU the run would hang here."
_NO_BARRIER = "On a TPU the run would continue: dist.barrier() of torch_xla 2.9 does not wait."
_SAME_COLLECTIVES = (
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
    doing = collective_text(outcome).removeprefix("in ")
    waiting_ones = [one for one in failure.outcomes if _waited(one)]
    missing = [one for one in failure.outcomes if not _waited(one)]
    if not missing and len({collective_text(one) for one in waiting_ones}) > 1:
        return _apart(failure, waiting_ones, seconds)
    who = base.ranks([one.rank for one in waiting_ones])
    late = f": {base.ranks([one.rank for one in missing])} never entered it" if missing else ""
    return Explanation(
        f"{who.capitalize()} waited {seconds} in {doing}{base.at(failure, outcome)}{late}.",
        f"{_rehearsal_positions(failure, waiting_ones, missing)} {_on_tpu(outcome) if missing else _LATE}",
        f"{_SAME_COLLECTIVES} If that rank only needs more time (it compiles or saves), increase --collective-timeout."
        if missing
        else "Increase --collective-timeout.",
    )


def _apart(failure: Failure, outcomes: Sequence[WorkerOutcome], seconds: str) -> Explanation:
    """All ranks wait in collectives of different groups of ranks."""
    groups: dict[str, list[int]] = {}
    for one in outcomes:
        groups.setdefault(collective_text(one), []).append(one.rank)
    said = "; ".join(f"{base.ranks(ranks)} {doing}" for doing, ranks in groups.items())
    return Explanation(
        f"All ranks waited for each other for {seconds}, in collectives of different groups of ranks.",
        f"{said[:1].upper()}{said[1:]}. {' '.join(_grouped(failure, outcomes))} {_ON_TPU}",
        "Pass the same `groups=` on every rank: the same lists, with the ranks in the same order.",
    )


_LATE = "All ranks entered it in the end, but the last one after the timeout."


def _on_tpu(outcome: WorkerOutcome) -> str:
    return _NO_BARRIER if collective_text(outcome).startswith("in barrier") else _ON_TPU


def _waited(outcome: WorkerOutcome) -> bool:
    kind, text = base.error_type(outcome), base.error_text(outcome)
    return kind == "CollectiveTimeout" or (kind == "CollectiveBroken" and "different collectives" not in text)


def _rehearsal_positions(
    failure: Failure, waiting_ones: Sequence[WorkerOutcome], missing: Sequence[WorkerOutcome]
) -> str:
    """Where the missing ranks are, then where the others wait, unless all wait at one line (already named)."""
    missing_at = list(_grouped(failure, missing))
    at = list(_grouped(failure, waiting_ones))
    return " ".join([*missing_at, *(at if len(at) > 1 else [])]).strip()


def _grouped(failure: Failure, outcomes: Sequence[WorkerOutcome]) -> Sequence[str]:
    groups: dict[str, list[int]] = {}
    for one in outcomes:
        where = base.at(failure, one).strip() if base.raised(one) else position(failure, one)
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
        f"{_SAME_COLLECTIVES} Tensors must have the same shape on all ranks (accelerator.pad_across_processes).",
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
        f"{who.capitalize()} waited {collective_text(outcome)}{base.at(failure, outcome)} that "
        f"{base.ranks(gone)} never entered: {had}.",
        f"The ranks ran different numbers of steps, or only some of them reach that line. {_on_tpu(outcome)}",
        _SAME_COLLECTIVES,
    )


def collective_text(outcome: WorkerOutcome) -> str:
    """The collective in which a rank of a rehearsal failed, e.g. "in all_reduce of float32[1]"; else ""."""
    if base.error_type(outcome) not in ("CollectiveTimeout", "CollectiveBroken"):
        return ""
    text = base.error_text(outcome)
    waited, current = _WAITED.search(text), _DOING.search(text)
    doing = waited[2] if waited else current[1] if current else "a collective"
    return f"in {_CHECKSUM.sub('', doing)}"


def in_compiled(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """torch.compile would keep the first values of a collective that a rehearsal carries."""
    if "cannot be rehearsed on XLA:CPU: the function becomes one graph" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} called a collective inside a torch.compile function{base.at(failure, outcome)}.",
        "The function becomes one graph, and a rehearsal carries collectives between graphs, on the host.",
        "Leave out fullgraph=True: xm's collectives then split the graph. Those of torch.distributed have to be called "
        "outside of the function.",
    )


EXPLAINERS = (in_compiled, waits_forever, never_entered, different, left, collective)


# -- --max-recompiles -------------------------------------------------------------------------------------------------


_RECOMPILE_LIMIT = re.compile(r"--max-recompiles allows (\d+)")
_RECOMPILES_SHOWN = 12


def too_many_recompiles(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The run had more recompiles than --max-recompiles allows."""
    limit = _RECOMPILE_LIMIT.search(base.error_text(outcome))
    if limit is None or base.error_type(outcome) != "RecompileLimit":
        return None
    compiles = only(Run(failure.run).events("compile", outcome.rank), Compile) if failure.run else []
    recompiles = [event for event in compiles if event.recompile and not event.expected]
    causes = Counter(map(_named, recompiles))
    most = ", ".join(f"{cause} ({count} times)" if count > 1 else cause for cause, count in causes.most_common())
    fixes = dict.fromkeys(event.fix for event in recompiles if event.fix)
    return Explanation(
        f"The run was stopped at recompile {len(recompiles) or int(limit[1]) + 1}: --max-recompiles allows {limit[1]}.",
        f"Causes: {most}." if most else "The causes were not recorded.",
        " ".join(list(fixes)[:2]) or "See %tpu_panel, or allow more.",
        tuple(_table(recompiles)),
    )


def _table(recompiles: list[Compile]) -> list[str]:
    lines = [_row(event) for event in recompiles[-_RECOMPILES_SHOWN:]]
    left_out = len(recompiles) - len(lines)
    return ["Recompiles:", *([f"  ... {left_out} earlier"] if left_out else []), *lines] if lines else []


def _row(event: Compile) -> str:
    difference = f": {event.difference[0]}" if event.difference else ""
    return f"  #{event.nth} {event.site.path}, line {event.site.line}: {_named(event)}{difference}"


def _named(event: Compile) -> str:
    return CAUSES.get(event.cause, CAUSES["unknown"])


RECOMPILES = (too_many_recompiles,)
