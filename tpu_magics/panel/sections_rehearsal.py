"""The words of a rehearsal: ranks on XLA:CPU or a mesh of devices, and what it has in common with a TPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpu_magics.panel.model_view import RankView, RunView
from tpu_magics.panel.sections_words import (
    Fact,
    count,
    not_available,
    percent,
    say,
    seconds,
    short,
    size,
    table,
    whole,
)
from tpu_magics.runs.events import Mesh

APART = 0.1  # of the training time: a rank that is so much busier than the next one is a straggler


@dataclass(frozen=True)
class TpuComparison:
    """What a rehearsal has in common with a TPU. `short`: in one line; `same`, `other`: one line for each point."""

    short: str
    same: tuple[str, ...]
    other: tuple[str, ...]


RANKS = TpuComparison(
    "Values, shards and compile counts match a TPU; speed and memory do not.",
    (
        "the data of each rank, and code that depends on the rank",
        "the results of collectives, up to rounding, and so the weights",
        "barriers: no rank continues before all ranks have arrived",
        "the number of compiles and their causes: graphs are counted as a TPU would compile them",
    ),
    (
        "speed and all times: the ranks share this machine's cores",
        "HBM: the data of a rank's device is in host memory",
        "collectives: gloo runs them on the host, outside the graph, and they split the graph",
        "dist.barrier() waits here; torch_xla's does nothing",
        "accelerate synchronizes the random states of the ranks on the host; on a TPU it runs a graph for that",
    ),
)
DEVICES = TpuComparison(
    "Shards and collectives match a TPU; speed and memory do not.",
    (
        "which shard of a tensor is on which device",
        "collectives: XLA puts them into the graph",
        "the number of compiles and their causes",
    ),
    (
        "speed and all times: the devices are parts of this machine's CPU",
        "HBM: the data of the devices is in host memory",
    ),
)


# -- where it runs ---------------------------------------------------------------------------------------------------


def where(view: RunView) -> str:
    """E.g. "rehearsal of 8 ranks on XLA:CPU"; "" where nothing is known."""
    ranks = count(len(view.ranks), "rank") if view.ranks else ""
    if view.rehearsed:
        ranks = f"rehearsal of {ranks}" if ranks else "rehearsal"
    elif view.spmd:
        ranks = f"{_devices(view.mesh)} in one SPMD worker" if view.mesh else "one SPMD worker"
    hosts = hosts_of(view)
    device = f"{count(len(hosts), 'host')}, {view.device}".rstrip(", ") if len(hosts) > 1 else view.device
    return " on ".join(part for part in (ranks, device) if part)


def hosts_of(view: RunView) -> tuple[str, ...]:
    """The hosts that have ranks, by name; none where the run has only this one."""
    return tuple(dict.fromkeys(rank.host for rank in view.ranks if rank.host))


def _devices(mesh: Mesh) -> str:
    return count(mesh.devices, "virtual device" if mesh.virtual else "device")


def rehearsal(info: object) -> str:
    """What run.json's plan says of a rehearsal: "rehearsal", "SPMD", or ""."""
    plan = info.get("plan") if isinstance(info, dict) else None
    if not isinstance(plan, dict):
        return ""
    return "rehearsal" if plan.get("rehearsed") is True else "SPMD" if isinstance(plan.get("spmd"), int) else ""


# -- what is like a TPU, and what is not -----------------------------------------------------------------------------


def likeness(view: RunView) -> TpuComparison | None:
    """None where nothing is rehearsed."""
    if view.rehearsed:
        return RANKS
    return DEVICES if view.spmd and view.mesh is not None and view.mesh.virtual else None


def likeness_facts(view: RunView) -> Iterator[Fact]:
    """The same as on a TPU, and what is not."""
    found = likeness(view)
    if found is not None:
        yield Fact("Same as on a TPU", found.same)
        yield Fact("Different on a TPU", found.other)


def rehearsal_html(view: RunView) -> str:
    """One line that unfolds; "" where nothing is rehearsed."""
    found = likeness(view)
    if found is None:
        return ""
    rows = ((f"<b>{whole(fact.label)}</b>", _list(fact.lines)) for fact in likeness_facts(view))
    summary = f'<summary style="cursor:pointer"><b>Rehearsal on CPU:</b> {say(found.short)}</summary>'
    return (
        f'<details style="margin:.4em 0">{summary}<div style="margin:.3em 0 0 .6em">{table((), rows)}</div></details>'
    )


def _list(lines: tuple[str, ...]) -> str:
    return "<br>".join(f"· {say(line)}" for line in lines)


# -- the mesh --------------------------------------------------------------------------------------------------------


def mesh_fact(view: RunView) -> Fact | None:
    """The devices of an SPMD run, and how the parameters lie on them; None where it is none."""
    if view.mesh is None:
        missing = not_available("no record yet" if view.live else "no record")
        return Fact("Mesh", (missing,)) if view.spmd else None
    return Fact("Mesh", (f"{_devices(view.mesh)}, {_shape(view.mesh)}; parameters: {_parameters(view.mesh)}",))


def _shape(mesh: Mesh) -> str:
    """E.g. "data=8, model=1"."""
    names = [*mesh.axes, *(f"axis {number}" for number in range(len(mesh.axes), len(mesh.shape)))]
    axes = [f"{short(name, 40)}={short(length, 20)}" for name, length in zip(names, mesh.shape, strict=False)]
    return ", ".join(axes[:8]) if axes else "no global mesh"


def _parameters(mesh: Mesh) -> str:
    if mesh.sharded is None or mesh.replicated is None:
        return not_available(short(mesh.text, 200) or "not reported")
    if not mesh.sharded and not mesh.replicated:
        return "none on the devices"
    kinds = (("sharded", mesh.sharded, mesh.sharded_bytes), ("replicated", mesh.replicated, mesh.replicated_bytes))
    return ", ".join(f"{number:,} {kind}{f' ({size(bytes_)})' if number else ''}" for kind, number, bytes_ in kinds)


# -- compiles and times ----------------------------------------------------------------------------------------------


def counted_as(view: RunView) -> str:
    """How a rehearsal counts compiles; else ""."""
    if not view.rehearsed:
        return ""
    pieces = f"; here host collectives split them into {count(view.pieces, 'piece')}" if view.pieces else ""
    return f"Graphs are counted as a TPU would compile them{pieces}."


def collectives(view: RunView) -> str:
    """E.g. "host collectives 2.2 s (25 calls, 17 % of the training time)"; "" where there can be none."""
    if not view.rehearsed:
        return ""
    if view.collectives is None:
        return f"host collectives {not_available('not reported yet' if view.live else 'not reported')}"
    share = "" if view.collectives_share is None else f", {percent(view.collectives_share)} of the training time"
    return f"host collectives {seconds(view.collectives)} ({count(view.n_collectives, 'call')}{share})"


def waited(rank: RankView) -> str:
    """The time of a rank in collectives."""
    if rank.collectives is None:
        return not_available("not reported")
    share = "" if rank.collectives_share is None else f" ({percent(rank.collectives_share)})"
    return f"{seconds(rank.collectives)}{share}"


def straggler(view: RunView) -> RankView | None:
    """The rank that the others wait for, where one is clearly slower. Its compiles are not counted: each rank compiles
    the same graphs, and on few cores one after the other."""
    known = sorted((rank for rank in view.ranks if rank.busy_share is not None), key=lambda one: one.busy_share or 0.0)
    if len(known) < 2:
        return None
    *_, second, first = known
    return first if (first.busy_share or 0.0) - (second.busy_share or 0.0) >= APART else None


def straggler_note(view: RunView) -> str:
    """Names the slowest rank, or ""."""
    slow = straggler(view)
    if slow is None:
        return ""
    others = [rank.busy_share for rank in view.ranks if rank is not slow and rank.busy_share is not None]
    return (
        f"The other ranks wait for rank {slow.rank}: it spent {percent(slow.busy_share or 0.0)} of its time outside "
        f"compiles and collectives, the others at most {percent(max(others))}."
    )
