"""Array shapes with TPU layouts, "bf16[100,768]{1,0:T(8,128)(2,1)}": their bytes, and the dimensions that tiles pad.

Tiles are read as XLA documents them (openxla.org/xla/tiled_layout): the dimensions, from major to minor, are cut by the
first tile at their minor end, the result by the next one, and so on; each cut rounds up.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

# Bits of an element where its name does not end in them. Types below a byte take one unless the layout packs them.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
_WIDTH = re.compile(r"^[a-z]+(\d+)")
# A dynamic dimension has its bound, "<=128", or "?".
_TENSOR = re.compile(r"([a-z]\w*)\[((?:(?:(?:<=)?\d+|\?),?)*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_TILE = re.compile(r"\(([\d,*]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_PACKED = re.compile(r"E\((\d+)\)")


def bits(dtype: str) -> int:
    """Bits of one element of that type, as XLA names it; 0 for what has none."""
    if dtype in _BITS:
        return _BITS[dtype]
    found = _WIDTH.match(dtype)
    return max(8, int(found[1])) if found else 0


@dataclass(frozen=True)
class ArrayShape:
    """An array type and its layout in memory. `order`: dimensions from minor to major; `tiles`: the first is applied
    first; `space`: 0 is the default memory (HBM on a TPU); `layout`: as written, with braces; `packed`: bits of an
    element where the layout says so."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0
    layout: str = ""
    packed: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def plain(self) -> int:
        """Bytes of the elements alone."""
        return self._bytes(math.prod(self.dims))

    @property
    def padded(self) -> int:
        """Bytes as laid out."""
        sizes = [self.dims[place] for place in reversed(self.order)]
        for tile in self.tiles:
            sizes = _cut(sizes, tile)
        return self._bytes(math.prod(sizes))

    @property
    def grown(self) -> tuple[tuple[int, int], ...]:
        """The dimensions that the layout makes larger, as (size, padded)."""
        tile = self.tiles[0] if self.tiles else ()
        inner = zip(self.order, reversed(tile), strict=False)
        sizes = ((self.dims[place], _up(self.dims[place], step)) for place, step in inner)
        return tuple((size, padded) for size, padded in sizes if 0 < size < padded)

    def _bytes(self, elements: int) -> int:
        return -(-elements * (self.packed or bits(self.dtype)) // 8)


def shares(tensor: ArrayShape) -> tuple[tuple[int, int, int], ...]:
    """(size, padded, bytes wasted) of each dimension that the layout makes larger. What two dimensions waste together
    is split between them by the logarithms of their factors, so that the sum is what the tensor wastes."""
    wasted, grown = tensor.padded - tensor.plain, tensor.grown
    whole = sum(math.log(padded / size) for size, padded in grown)
    return tuple((size, padded, round(wasted * math.log(padded / size) / whole)) for size, padded in grown)


@functools.lru_cache(maxsize=4096)
def array_shapes(type_: str) -> tuple[ArrayShape, ...]:
    """The array shapes of a type: one, or all in a tuple; none for other text."""
    return tuple(_tensor(*found.groups(default="")) for found in _TENSOR.finditer(type_))


def _tensor(dtype: str, dims: str, layout: str) -> ArrayShape:
    sizes = tuple(int(one.strip("<=?") or 0) for one in dims.split(",") if one)
    order, _, rest = layout.partition(":")
    places = tuple(int(one) for one in order.split(",") if one.strip().isdigit())
    tiles, space, packed = _TILES.search(rest), _SPACE.search(rest), _PACKED.search(rest)
    return ArrayShape(
        dtype,
        sizes,
        places if sorted(places) == list(range(len(sizes))) else tuple(reversed(range(len(sizes)))),
        tuple(_sizes(one) for one in _TILE.findall(tiles[1])) if tiles else (),
        int(space[1]) if space else 0,
        f"{{{layout}}}" if layout else "",
        int(packed[1]) if packed else 0,
    )


def _sizes(tile: str) -> tuple[int, ...]:
    # "*" joins a dimension with the next minor one; cutting by 1 leaves it as it is, which takes the same memory.
    return tuple(max(int(one), 1) if one.isdigit() else 1 for one in tile.split(","))


def _cut(sizes: list[int], tile: tuple[int, ...]) -> list[int]:
    sizes = [1] * (len(tile) - len(sizes)) + sizes
    outer, inner = sizes[: len(sizes) - len(tile)], sizes[len(sizes) - len(tile) :]
    return outer + [-(-size // step) for size, step in zip(inner, tile, strict=True)] + list(tile)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
