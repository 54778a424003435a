"""What the text of one instruction says: the shapes of its arrays with their TPU layouts, the name of its op, and the
user's source line."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tpu_magics.backends.hlo.text import HloModule, Instruction
from tpu_magics.preflight.compile_result import SourceLine

# -- shapes -----------------------------------------------------------------------------------------------------------


# Tiles are read as XLA documents them (openxla.org/xla/tiled_layout): the dimensions, from major to minor, are cut by
# the first tile at their minor end, the result by the next one, and so on; each cut rounds up.

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


# -- names and source lines -------------------------------------------------------------------------------------------


# libtpu 0.0.21.1 writes one location into each instruction (`source_file="..." source_line=11`); 0.0.52 a number of the
# table `StackFrames`, each with its parent. Paths stay as the framework has them.

_OP = re.compile(r'[{ ]op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"[{ ]stack_frame_id=(\d+)")
_SOURCE = re.compile(r'[{ ]source_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_NUMBERED = re.compile(r'^(\d+) (?:"(.*)"|\{(.*)\})\s*$')
_FIELD = re.compile(r"(\w+)=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
# Not the user's lines: installed packages, the standard library, code without a file (MLIR calls a module
# that it read from bytes "-").
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3(?:\.\d+)?/|^<(?:frozen .*|string|stdin|unknown)>$|^-$")
# The same, unless there is no other line: a package that is worked on in its own repository.
_NAMED = re.compile(r"(?:^|/)(?:torch|torch_xla|jax|jaxlib|tensorflow|keras|transformers|accelerate|tpu_magics)/")
_DEEPEST = 1000


def op_name(one: Instruction) -> str:
    """The name of the op that an instruction belongs to, as the framework gave it; "" where there is none."""
    found = _OP.search(one.tail, max(one.tail.find("metadata={"), 0)) if "metadata={" in one.tail else None
    return found[1].replace('\\"', '"') if found else ""


@dataclass
class FrameTables:
    """The tables of one program. `_files`: paths by number; `_lines`: (file, line) by number; `_frames`: (location,
    parent) by number."""

    _files: dict[int, str] = field(default_factory=dict)
    _lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    _frames: dict[int, tuple[int, int]] = field(default_factory=dict)
    _shift: int = 0

    def of(self, one: Instruction) -> SourceLine | None:
        """The innermost line of the user's code; None where the dump has none."""
        if "metadata={" not in one.tail:
            return None
        frame, source = _FRAME.search(one.tail), _SOURCE.search(one.tail)
        lines = self._stack(int(frame[1])) if frame else iter(())
        written = [(source[1], int(source[2] or 0))] if source else []
        own = [
            SourceLine(path, line) for path, line in (*lines, *written) if line and path and not _INSTALLED.search(path)
        ]
        return next((one for one in own if not _NAMED.search(one.path)), own[0] if own else None)

    def _stack(self, number: int) -> Iterator[tuple[str, int]]:
        """(path, line), the innermost first."""
        for _ in range(_DEEPEST):
            if number not in self._frames:
                return
            location, parent = self._frames[number]
            file, line = self._lines.get(location, (0, 0))
            yield self._files.get(file, ""), line
            number = parent - self._shift


def read_frame_tables(program: HloModule) -> FrameTables:
    """The tables that stand before the first computation."""
    places, table = FrameTables(), ""
    for line in program.tables:
        if line.strip() in _TABLES:
            table = line.strip()
        elif found := _NUMBERED.match(line):
            _enter(places, table, int(found[1]), found[2], dict(_FIELD.findall(found[3] or "")))
    places._shift = _shift(places._frames.values())
    return places


def _enter(places: FrameTables, table: str, number: int, text: str | None, fields: dict[str, str]) -> None:
    if table == "FileNames" and text is not None:
        places._files[number] = text
    elif table == "FileLocations":
        places._lines[number] = int(fields.get("file_name_id", 0)), int(fields.get("line", 0))
    elif table == "StackFrames":
        places._frames[number] = int(fields.get("file_location_id", 0)), int(fields.get("parent_frame_id", 0))


def _shift(frames: Iterable[tuple[int, int]]) -> int:
    """libtpu 0.0.52 writes the number of the parent plus 1, so that the outermost frames are their own parents; in the
    form that XLA documents (xla/service/hlo.proto, StackFrameIndex) their parent is 0."""
    return 0 if any(parent == 0 for _, parent in frames) else 1
