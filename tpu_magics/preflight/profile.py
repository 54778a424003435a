"""Where a step's time and memory go: its operations by kind, module and line, by the compiler's own estimate.

Two figures stand side by side. The bound: no operation takes less than its FLOPs at the chip's peak, its bytes of HBM
at the bandwidth, its transfers at that of the links. The estimate: the cycles that the compiler reckons with, at the
clock of the chip. Neither was measured on a TPU; docs/profile.md compares them with published step times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tpu_magics.backends.lowered import EAGER, LoweredGraph, SourceLine
from tpu_magics.preflight.chip_specs import ChipSpec
from tpu_magics.preflight.compile_result import (
    COLLECTIVE,
    IRREGULAR,
    PREFETCH,
    CollectiveTransfer,
    CompileResult,
    HeldMemory,
    OpCost,
)
from tpu_magics.preflight.roofline import COMPUTE, MEMORY, NO_PROGRAM, is_made

__all__ = ["NETWORK", "MemoryGroup", "ModuleTree", "Profile", "ProfileGroup", "ProfiledOp", "profile"]


NETWORK = "transfers"
OUTSIDE = "outside of modules"
ALL_RANKS = "all ranks"
NO_ESTIMATES = (
    "this libtpu ({}) notes no estimates of cycles beside its operations; libtpu 0.0.52 does: pip install -U "
    "'tpu-magics[preflight]'"
)
NO_CLOCK = "the clock of this chip is not known"


@dataclass(frozen=True)
class ProfiledOp:
    """An operation of a step, in all its runs. `seconds`: by the compiler's estimate, None where it has none;
    `compute`, `memory`, `transfer`: that its FLOPs, bytes of HBM and bytes to other chips take at least; `meanwhile`:
    by the estimate, of the operations that run while it sends."""

    cost: OpCost
    seconds: float | None
    compute: float
    memory: float
    transfer: float
    meanwhile: float = 0.0

    @property
    def least(self) -> float:
        """Seconds at least."""
        return max(self.compute, self.memory, self.transfer)

    @property
    def bound(self) -> str:
        """What takes them: COMPUTE, MEMORY, NETWORK, or "" where nothing does."""
        found = {COMPUTE: self.compute, MEMORY: self.memory, NETWORK: self.transfer}
        return max(found, key=lambda name: found[name]) if self.least else ""

    @property
    def exposed(self) -> float:
        """Seconds at least that it adds to the step: not those in which other operations run."""
        return max(self.compute, self.memory, self.transfer - self.meanwhile)

    @property
    def is_hidden(self) -> bool:
        """Whether it runs beside other operations, so that its time is not one of the step's; or is the end of a
        transfer, whose time is that of its start."""
        return self.cost.kind == PREFETCH or (self.cost.kind == COLLECTIVE and self.cost.transfer is None)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte of HBM."""
        return self.cost.flops / self.cost.bytes if self.cost.flops and self.cost.bytes else None

    @property
    def waste(self) -> float:
        """The part of the result that is tile padding, 0 to 1."""
        return 1 - self.cost.plain / self.cost.padded if self.cost.padded else 0.0


@dataclass(frozen=True)
class ProfileGroup:
    """Operations that share something. `name`: of it; `place`: of a group by line."""

    name: str
    ops: tuple[ProfiledOp, ...]
    place: SourceLine | None = None

    @cached_property
    def seconds(self) -> float:
        """By the compiler's estimate, of those that it estimates."""
        return sum(one.seconds or 0.0 for one in self.ops)

    @cached_property
    def least(self) -> float:
        """Seconds at least: each kind of work at its peak rate, and all kinds at once."""
        whole = ((one.compute, one.memory, one.transfer) for one in self.ops)
        return max((sum(kind) for kind in zip(*whole, strict=True)), default=0.0)

    @cached_property
    def unknown(self) -> tuple[ProfiledOp, ...]:
        """Operations that it does not estimate, and that take time of their own."""
        return tuple(one for one in self.ops if one.seconds is None and not one.is_hidden)

    @cached_property
    def unknown_least(self) -> float:
        """What those add at least."""
        return sum(one.exposed for one in self.unknown)

    @property
    def weight(self) -> float:
        """For the order: the estimate, and the bound of what is not estimated."""
        return self.seconds + self.unknown_least

    def of(self, phase: str) -> float:
        """Seconds in that phase."""
        return sum(one.seconds or 0.0 for one in self.ops if one.cost.scope.phase == phase)


@dataclass(frozen=True)
class ModuleTree:
    """A module: what it does in all, and the modules in it, what takes most first. `path`: "encoder.layer.3"."""

    path: str
    group: ProfileGroup
    inside: tuple[ModuleTree, ...]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class MemoryGroup:
    """What a module, or a kind, holds in HBM at the peak. `kinds`: bytes by kind ("argument", "temporary", ...)."""

    name: str
    size: int
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class TransferGroup(ProfileGroup):
    """The transfers over the same axes of the mesh. `name`: "data", "fsdp and model", "all ranks"."""

    @cached_property
    def least(self) -> float:
        """Seconds that the links need at least."""
        return sum(one.transfer for one in self.ops)

    @property
    def bytes(self) -> float:
        """That each device sends to others."""
        return sum(one.cost.transfer.bytes for one in self.ops if one.cost.transfer is not None)

    @property
    def beside(self) -> int:
        """How many run beside other operations."""
        return sum(1 for one in self.ops if one.meanwhile)


@dataclass(frozen=True)
class Profile:
    """One step on one device. `ops`: in the order in which they run, a loop's once; `missing`: why there is no
    estimate, "" where there is one; `held`, `curve`: of the program that needs most memory, as in CompileResult;
    `bandwidth`: of HBM, bytes/s; `mesh`: as in LoweredGraph; `ranks`: that train together."""

    ops: tuple[ProfiledOp, ...] = ()
    missing: str = ""
    held: tuple[HeldMemory, ...] = ()
    curve: tuple[tuple[float, int], ...] = ()
    bandwidth: float = field(default=1.0, repr=False)
    mesh: tuple[tuple[str, int], ...] = ()
    ranks: int = 1

    @cached_property
    def whole(self) -> ProfileGroup:
        return ProfileGroup("step", self.ops)

    @property
    def seconds(self) -> float | None:
        """By the compiler's estimate, of the operations that it estimates; None: it estimates none."""
        return None if self.missing else self.whole.seconds

    @property
    def least(self) -> float:
        """Seconds that a step takes at least."""
        return self.whole.least

    @property
    def irregular(self) -> float:
        """The part of the time that gathers, scatters and sorts take, if they were as fast as a copy of what they make;
        0 to 1. They are not, by an unknown factor."""
        found = [one for one in self.ops if one.cost.kind in IRREGULAR]
        copied = sum(max(one.memory, one.cost.runs * one.cost.padded / self.bandwidth) for one in found)
        rest = self.whole.weight - sum(one.least for one in found)
        return copied / (copied + rest) if copied else 0.0

    @property
    def sent(self) -> float:
        """Bytes that each device sends to others."""
        return sum(one.cost.transfer.bytes for one in self.ops if one.cost.transfer is not None)

    @cached_property
    def transfers(self) -> tuple[TransferGroup, ...]:
        """By the axes of the mesh, what takes most first."""
        found: dict[str, list[ProfiledOp]] = {}
        for one in self.ops:
            if one.cost.transfer is not None:
                found.setdefault(self.axes(one.cost.transfer), []).append(one)
        groups = (TransferGroup(name, tuple(ops)) for name, ops in found.items())
        return tuple(sorted(groups, key=lambda one: -one.least))

    def axes(self, transfer: CollectiveTransfer) -> str:
        """What a transfer runs over: axes of the mesh, or ranks."""
        sizes = [size for _, size in self.mesh]
        if not sizes:
            return ALL_RANKS if transfer.group == self.ranks else f"{transfer.group} ranks"
        if transfer.group == math.prod(sizes):
            return _names(self.mesh)
        if not transfer.stride:
            return f"{transfer.group} devices"
        members = [_coordinates(abs(transfer.stride) * place, sizes) for place in range(transfer.group)]
        varying = [place for place, values in enumerate(zip(*members, strict=True)) if len(set(values)) > 1]
        whole = math.prod(sizes[place] for place in varying) == transfer.group or transfer.group == 2  # or a pair
        return _names([self.mesh[place] for place in varying]) if whole else f"{transfer.group} devices"

    @cached_property
    def placed(self) -> float | None:
        """The part of the estimated time whose line is known, 0 to 1."""
        known = sum(one.seconds or 0.0 for one in self.ops if one.cost.place is not None)
        return known / self.whole.seconds if self.whole.seconds else None

    def share(self, seconds: float) -> float:
        """The part of the estimated time, 0 to 1."""
        return seconds / self.whole.seconds if self.whole.seconds else 0.0

    @cached_property
    def kinds(self) -> tuple[ProfileGroup, ...]:
        return self._groups(lambda one: (one.cost.kind, None))

    @cached_property
    def phases(self) -> tuple[ProfileGroup, ...]:
        """Forward, backward, recompute, optimizer, and what is outside of them."""
        return self._groups(lambda one: (one.cost.scope.phase or "other", None))

    @cached_property
    def lines(self) -> tuple[ProfileGroup, ...]:
        """By the user's line."""
        return self._groups(lambda one: (str(one.cost.place or ""), one.cost.place))

    @cached_property
    def modules(self) -> tuple[ModuleTree, ...]:
        """The modules as a tree."""
        return tuple(_trees("", [one for one in self.ops if not one.is_hidden]))

    def largest(self, count: int = 10) -> tuple[ProfiledOp, ...]:
        """The operations that take most: by the estimate, else by the bound."""
        shown = [one for one in self.ops if not one.is_hidden]
        return tuple(sorted(shown, key=lambda one: -(one.exposed if one.seconds is None else one.seconds))[:count])

    @cached_property
    def memory_by_module(self) -> tuple[MemoryGroup, ...]:
        """What is in HBM at the peak, what is most first."""
        found: dict[str, dict[str, int]] = {}
        for one in self.held:
            kinds = found.setdefault(held_module(one), {})
            kinds[one.kind] = kinds.get(one.kind, 0) + one.size
        groups = (MemoryGroup(name, sum(kinds.values()), kinds) for name, kinds in found.items())
        return tuple(sorted(groups, key=lambda one: -one.size))

    def _groups(self, key: Callable[[ProfiledOp], tuple[str, SourceLine | None]]) -> tuple[ProfileGroup, ...]:
        found: dict[tuple[str, SourceLine | None], list[ProfiledOp]] = {}
        for one in self.ops:
            found.setdefault(key(one), []).append(one)
        groups = (ProfileGroup(name, tuple(ops), place) for (name, place), ops in found.items())
        return tuple(sorted(groups, key=lambda one: -one.weight))


def _names(axes: Sequence[tuple[str, int]]) -> str:
    """The names of mesh axes that have several devices; those without a name by their sizes."""
    return " and ".join(name or f"an axis of {size}" for name, size in axes if size > 1)


def _coordinates(device: int, sizes: Sequence[int]) -> list[int]:
    """In a mesh of these sizes, whose devices are numbered along its last axis first."""
    found = []
    for size in reversed(sizes):
        device, place = divmod(device, size)
        found.append(place)
    return found[::-1]


def _trees(above: str, ops: Sequence[ProfiledOp]) -> Iterator[ModuleTree]:
    """The modules right below that path, what takes most first; layers by their numbers."""
    found: dict[str, list[ProfiledOp]] = {}
    for one in ops:
        module = one.cost.scope.module or OUTSIDE
        if module == above:
            continue
        rest = module[len(above) + 1 :] if above else module
        name = rest if module == OUTSIDE else rest.partition(".")[0]
        found.setdefault(f"{above}.{name}" if above else name, []).append(one)
    groups = [ProfileGroup(path, tuple(inside)) for path, inside in found.items()]
    numbered = all(one.name.rpartition(".")[2].isdecimal() for one in groups)
    for group in sorted(groups, key=lambda one: int(one.name.rpartition(".")[2]) if numbered else -one.weight):
        yield ModuleTree(group.name, group, tuple(_trees(group.name, group.ops)))


def held_module(one: HeldMemory) -> str:
    """The module that a buffer belongs to: by its op, or by the name of a parameter, "exp_avg of encoder.weight"."""
    if one.kind == "temporary" or one.scope.module:
        return one.scope.module or OUTSIDE
    name = one.op.rpartition(" of ")[2]
    return name.rpartition(".")[0] if "." in name else name or OUTSIDE


# -- from compile results ---------------------------------------------------------------------------------------------


def profile(compiled: Iterable[CompileResult], chip: ChipSpec, graph: LoweredGraph | None = None) -> Profile:
    """Profile a step that runs these programs in turn, on one device of that chip. `graph`: one of them, for the
    devices that take part."""
    found = list(compiled)
    ops = tuple(_profiled(cost, chip) for one in found for cost in one.costs)
    largest = max(found, key=lambda one: one.memory.needed if one.memory else 0, default=None)
    return Profile(
        ops,
        _missing(found, chip),
        held=largest.held if largest is not None else (),
        curve=largest.curve if largest is not None else (),
        bandwidth=chip.device_bandwidth,
        mesh=graph.mesh if graph is not None else (),
        ranks=graph.replicas if graph is not None else 1,
    )


def _missing(found: Sequence[CompileResult], chip: ChipSpec) -> str:
    costs = [cost for one in found if is_made(one) for cost in one.costs if cost.kind != EAGER]
    if not costs:
        return NO_PROGRAM
    if not any(cost.cycles is not None for cost in costs):
        versions = next((one.versions["libtpu"] for one in found if "libtpu" in one.versions), "of unknown version")
        return NO_ESTIMATES.format(versions)
    return "" if chip.clock else NO_CLOCK


def _profiled(cost: OpCost, chip: ChipSpec) -> ProfiledOp:
    sent = _between_chips(cost.transfer, chip) if cost.transfer is not None else 0.0
    return ProfiledOp(
        cost,
        cost.cycles / chip.clock if cost.cycles is not None and chip.clock else None,
        compute=cost.flops / chip.device_peak_flops,
        memory=cost.bytes / chip.device_bandwidth,
        transfer=sent / chip.ici if chip.ici else 0.0,
        meanwhile=cost.transfer.hidden / chip.clock if cost.transfer is not None and chip.clock else 0.0,
    )


def _between_chips(transfer: CollectiveTransfer, chip: ChipSpec) -> float:
    """The least bytes that a chip sends to others: its devices need no link for what they exchange."""
    chips = -(-transfer.group // chip.devices)
    if chips <= 1 or transfer.group <= 1:
        return 0.0
    return transfer.bytes * ((chips - 1) / chips) / ((transfer.group - 1) / transfer.group)
