"""Slices of TPUs and their names: Google's ("v5litepod-8"), short ones ("v5e-8"), topologies ("v5e:2x4").

Sources: the pages of v4, v5e, v5p and v6e in the Cloud TPU documentation, and MaxText's map of accelerator types, for
slices and topologies. The pages of v2 and v3 name slices and no topologies: these are the rectangles that double in
turn. 7x has v5p's shapes, up to 4096 chips; its own page was not compared. libtpu 0.0.52 accepts them all, 0.0.21.1 all
but 7x's.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.chip_specs import CHIPS, ChipSpec

__all__ = ["SLICES", "ChipSpec", "Target", "known", "known_lines", "of_topology", "parse", "parse_all"]


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
        """The topology in libtpu's words: "v5e:2x4"."""
        return _topology(self.chip, self.bounds)

    @property
    def number(self) -> int:
        """The number in Google's name: of chips or of TensorCores."""
        return int(self.accelerator_type.rpartition("-")[2])

    @property
    def devices(self) -> int:
        """Devices in the topology. On 7x twice as many as ranks: two successive ones are one chip."""
        return self.chips * self.chip.devices

    @property
    def ranks(self) -> int:
        """Ranks that torch_xla's launcher starts there."""
        return self.chips * self.chip.replicas

    @property
    def options(self) -> dict[str, Any]:
        """libtpu's options besides the topology's name; plain JSON data.

        libtpu 0.0.21.1 assumes hosts of 2x2 chips and refuses "v5e:1x1" without `chips_per_host_bounds`;
        0.0.52 finds the same bounds itself, except for 2x4, which it splits into two hosts.
        """
        return {"chips_per_host_bounds": list(self.host_bounds), **dict(self.chip.options)}


def of_topology(chip: ChipSpec, bounds: Bounds) -> Target | None:
    """The slice of so many chips in each direction; None where that is impossible.

    Slices that Google does not offer are accepted: libtpu decides.
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


# -- names ------------------------------------------------------------------------------------------------------------

# Other common names of generations; a "tpu" before any of them is accepted.
_ALIASES = {"v5lite": "v5e", "v7x": "7x", "trillium": "v6e", "ironwood": "7x"}
_CHIPS = {chip.generation: chip for chip in CHIPS}
_GENERATIONS = {**_ALIASES, **{chip.prefix: chip.generation for chip in CHIPS}, **{name: name for name in _CHIPS}}
_NAMES = "|".join(sorted(_GENERATIONS, key=len, reverse=True))
_NAME = re.compile(rf"(?:tpu)?-?(?P<generation>{_NAMES})(?:-?(?P<number>\d+)|:(?P<bounds>\d+(?:x\d+)*)|-?)")

_GPU_WORDS = ("nvidia", "geforce", "tesla", "quadro", "rtx", "gtx", "cuda", "gpu", "rocm", "radeon")
_GPUS = (
    *("a2", "a10", "a10g", "a16", "a30", "a40", "a100", "a800", "b100", "b200", "b300", "gb200", "gb300", "gh200"),
    *("h20", "h100", "h200", "h800", "k80", "l4", "l40", "l40s", "p4", "p40", "p100", "t4", "v100"),
    *("mi210", "mi250", "mi250x", "mi300", "mi300x", "mi325x", "mi350x"),
)
_COUNTED = {"chips": "chips", "cores": "TensorCores"}
_ONE = "Use one of these, e.g. --target v5e-8"
_SEVERAL = "Use one or more of these, separated by commas, e.g. --target v5e-8,v6e-8"


def known() -> tuple[str, ...]:
    """Google's names of all slices, by generation and size."""
    return tuple(target.name for slices in SLICES.values() for target in slices.values())


def known_lines() -> list[str]:
    """All names for display, a line for each generation."""
    return [_line(chip) for chip in CHIPS]


def parse(text: str, todo: str = _ONE) -> Target:
    """The slice of that name; case, blanks and underscores do not matter.

    Raises TpuMagicsError with `todo` and a list of all names where no TPU has that name.
    """
    found = _NAME.fullmatch(re.sub(r"[\s_]+", "", text).lower())
    if found is None:
        raise _not_a_tpu(text, todo)
    chip = _CHIPS[_GENERATIONS[found["generation"]]]
    if found["bounds"] is not None:
        return _by_topology(text, chip, found["bounds"])
    if found["number"] is None:
        raise _no_number(text, chip)
    return _by_number(text, chip, int(found["number"]))


def parse_all(text: str | Iterable[str]) -> tuple[Target, ...]:
    """The slices of names with commas between them (or of several such texts), in that order, each once.

    Raises TpuMagicsError where no name is given, or one is not a TPU's.
    """
    texts = [text] if isinstance(text, str) else list(text)
    names = [name for one in texts for name in one.split(",") if name.strip()]
    if not names:
        raise TpuMagicsError("No target TPU was given.", todo=_SEVERAL, details=known_lines())
    return tuple(dict.fromkeys(parse(name, _SEVERAL) for name in names))


def _by_topology(text: str, chip: ChipSpec, bounds: str) -> Target:
    target = of_topology(chip, tuple(map(int, bounds.split("x"))))
    if target is None:
        raise _no_such_topology(text, chip)
    return target


def _by_number(text: str, chip: ChipSpec, number: int) -> Target:
    target = SLICES[chip.generation].get(number)
    if target is None:
        raise _no_such_size(text, chip, number)
    return target


# -- what is wrong with a name --------------------------------------------------------------------------------------


def _not_a_tpu(text: str, todo: str) -> TpuMagicsError:
    if _is_gpu(text):
        return TpuMagicsError(
            f'"{text.strip()}" is a GPU.',
            "A target is a TPU or a slice of TPUs: the TPU compiler compiles for nothing else.",
            todo,
            known_lines(),
        )
    near = _near(text)
    why = f"Similar names: {', '.join(near)}." if near else ""
    return TpuMagicsError(f'There is no TPU named "{text.strip()}".', why, todo, known_lines())


def _no_number(text: str, chip: ChipSpec) -> TpuMagicsError:
    first = [_plain(chip, number) for number in list(SLICES[chip.generation])[:3]]
    return TpuMagicsError(
        f'"{text.strip()}" is a TPU generation without a size.',
        f"The number of chips decides which collectives are compiled. {_counts(chip)}",
        f"Add the size: {', '.join(first)}, ...",
        [_line(chip)],
    )


def _no_such_size(text: str, chip: ChipSpec, number: int) -> TpuMagicsError:
    near = sorted(SLICES[chip.generation], key=lambda one: abs(one - number))[:2]
    return TpuMagicsError(
        f'There is no slice "{text.strip()}".',
        f"{_counts(chip)} The nearest: {' and '.join(_plain(chip, one) for one in sorted(near))}.",
        "Use one of these.",
        [_line(chip)],
    )


def _no_such_topology(text: str, chip: ChipSpec) -> TpuMagicsError:
    topologies = [target.topology for target in SLICES[chip.generation].values()]
    return TpuMagicsError(
        f'A TPU {chip.generation} cannot have the topology "{text.strip()}".',
        f"The numbers are chips in each direction, and the largest slice is {topologies[-1]}.",
        "Use one of these, or a similar one.",
        [", ".join(topologies)],
    )


def _is_gpu(text: str) -> bool:
    words = re.split(r"[^a-z0-9]+", text.lower())
    return any(word in _GPUS or word.startswith(_GPU_WORDS) for word in words)


def _near(text: str) -> list[str]:
    plain = (_plain(_CHIPS[generation], number) for generation, slices in SLICES.items() for number in slices)
    return difflib.get_close_matches(text.strip().lower(), dict.fromkeys([*known(), *plain]), n=3)


def _plain(chip: ChipSpec, number: int) -> str:
    """ "v5e-8", where Google writes "v5litepod-8"."""
    return f"{chip.topology}-{number}"


def _counts(chip: ChipSpec) -> str:
    each = f", {chip.cores} in each chip" if chip.kind.counts == "cores" else ""
    return f"The number in {chip.topology}-N counts {_COUNTED[chip.kind.counts]}{each}."


def _line(chip: ChipSpec) -> str:
    names = dict.fromkeys(f"{one}-N" for one in (chip.prefix, chip.generation))
    numbers = ", ".join(str(number) for number in SLICES[chip.generation])
    return f"{' or '.join(names)}: N = {numbers} {_COUNTED[chip.kind.counts]}"
