"""The slices of TPUs, and what libtpu needs to know of one.

Sources: the pages of v4, v5e, v5p and v6e in the Cloud TPU documentation, and MaxText's map of accelerator types, for
slices and topologies. The pages of v2 and v3 name slices and no topologies: these are the rectangles that double in
turn. 7x has v5p's shapes, up to 4096 chips; its own page was not compared. libtpu 0.0.52 accepts them all, 0.0.21.1 all
but 7x's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.preflight.chip_specs import CHIPS, ChipSpec

__all__ = ["SLICES", "Target", "of_topology"]

Bounds = tuple[int, ...]

_FROM_ONE_CHIP = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_CUBOIDS = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"
_TOPOLOGIES = {
    "v2": "2x2 4x4 8x8 8x16 16x16",
    "v3": "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32",
    "v4": _CUBOIDS,
    "v5e": _FROM_ONE_CHIP,
    "v5p": f"{_CUBOIDS} 16x16x16 16x16x24",
    "v6e": _FROM_ONE_CHIP,
    "7x": f"{_CUBOIDS} 16x16x16",
}
# One virtual machine of v5e and v6e has up to eight chips; larger slices are made of machines of four.
_EIGHT_ON_ONE_HOST = (("v5e", (2, 4)), ("v6e", (2, 4)))


@dataclass(frozen=True)
class Target:
    """A slice of TPUs to compile for.

    `name`: as Google writes it, "v5litepod-8" (of a topology that no named slice has: the topology); `chips`: how many;
    `bounds`: in each direction; `accelerator_type`: Google's type string; `host_bounds`: the chips of one host in each
    direction; `hosts`: virtual machines.
    """

    name: str
    chip: ChipSpec
    chips: int
    bounds: Bounds
    accelerator_type: str
    host_bounds: tuple[int, int, int]
    hosts: int

    @property
    def generation(self) -> str:
        """ "v5e"."""
        return self.chip.generation

    @property
    def topology(self) -> str:
        """As libtpu takes it: "v5e:2x4"."""
        return _topology(self.chip, self.bounds)

    @property
    def number(self) -> int:
        """The number in Google's name: of chips or of TensorCores."""
        return int(self.accelerator_type.rpartition("-")[2])

    @property
    def devices(self) -> int:
        """In the topology. On 7x twice as many as ranks: two successive ones are one chip."""
        return self.chips * self.chip.devices

    @property
    def ranks(self) -> int:
        """That torch_xla's launcher starts there."""
        return self.chips * self.chip.replicas

    @property
    def options(self) -> dict[str, Any]:
        """What libtpu is given besides the topology's name; plain JSON data.

        libtpu 0.0.21.1 takes hosts of 2x2 chips for granted and refuses "v5e:1x1" without `chips_per_host_bounds`;
        0.0.52 finds the same bounds for itself, except for 2x4, which it makes two hosts of.
        """
        return {"chips_per_host_bounds": list(self.host_bounds), **dict(self.chip.options)}


def of_topology(chip: ChipSpec, bounds: Bounds) -> Target | None:
    """The slice of so many chips in each direction; None where no such thing can be.

    A slice that Google does not offer is one all the same: libtpu has the last word on it.
    """
    slices = tuple(SLICES[chip.generation].values())
    named = next((one for one in slices if one.bounds == bounds), None)
    if named is not None:
        return named
    largest = slices[-1]
    possible = len(bounds) == len(largest.bounds) and 0 < math.prod(bounds) <= largest.chips
    return _target(chip, bounds, _topology(chip, bounds)) if possible else None


def _target(chip: ChipSpec, bounds: Bounds, name: str = "") -> Target:
    host, chips = _host_bounds(chip, bounds), math.prod(bounds)
    google = chip.kind.type_string(chips)
    return Target(
        name=name or google,
        chip=chip,
        chips=chips,
        bounds=bounds,
        accelerator_type=google,
        host_bounds=host,
        hosts=chips // math.prod(host),
    )


def _topology(chip: ChipSpec, bounds: Bounds) -> str:
    return f"{chip.topology}:{'x'.join(map(str, bounds))}"


def _host_bounds(chip: ChipSpec, bounds: Bounds) -> tuple[int, int, int]:
    if (chip.generation, bounds) in _EIGHT_ON_ONE_HOST:
        return (2, 4, 1)
    return (math.gcd(bounds[0], 2), math.gcd(bounds[1], 2), 1)


def _slices(chip: ChipSpec) -> dict[int, Target]:
    shapes = (tuple(map(int, one.split("x"))) for one in _TOPOLOGIES[chip.generation].split())
    return {target.number: target for target in (_target(chip, shape) for shape in shapes)}


# By generation, and by the number in Google's name.
SLICES: Mapping[str, Mapping[int, Target]] = {chip.generation: _slices(chip) for chip in CHIPS}
