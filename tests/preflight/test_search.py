"""The search for the largest batch: against trying every size, on curves of HBM over batch.

The curves are arithmetic, of the forms that compilers give: straight, in steps of a tile's rows, bent near the limit.
One search at the end is made of real compiles.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.preflight.compilation import compile_graphs
from tpu_magics.preflight.fit import EXACT_BELOW, TOLERANCE, FitPoint, FitResult, Range, step_of
from tpu_magics.preflight.search import HIGHEST, search
from tpu_magics.preflight.targets import Target, parse_all

GIB = 2**30
V5E = 15.75 * GIB  # what the compiler allows a program on v5e
Curve = Callable[[int], float]


@dataclass(frozen=True)
class Tpu:
    """A target as the search sees it."""

    name: str
    ranks: int = 1
    devices: int = 1


@dataclass
class FakeCompiler:
    """Stands where the compiler would: a curve for each target, sizes that the function takes, and what was asked."""

    curves: Mapping[str, Curve]
    available: Mapping[str, float] = field(default_factory=dict)
    takes: Callable[[int], bool] = lambda size: True
    graph: Callable[[int], str] = lambda size: f"graph of {size}"
    instead: Mapping[tuple[int, str], FitPoint] = field(default_factory=dict)
    measured: bool = True
    asked: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def __call__(self, size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        assert len(set(names)) == len(names) > 0
        for name in names:
            assert name not in self.told_of(size), f"{size} was asked twice for {name}"
        self.asked.append((size, tuple(names)))
        if not self.takes(size):
            raise TpuMagicsError(f"ValueError: bad batch {size}.")
        return {name: self.instead.get((size, name)) or self.point(size, name) for name in names}

    def told_of(self, size: int) -> set[str]:
        return {name for asked, names in self.asked for name in names if asked == size}

    def point(self, size: int, name: str) -> FitPoint:
        available = int(self.available.get(name, V5E))
        needed = int(self.curves[name](size))
        status = "fits" if needed <= available else "too-large"
        if not self.measured:
            return FitPoint(size, status, seconds=1.0, graph=self.graph(size))
        return FitPoint(size, status, needed, available, seconds=1.0, graph=self.graph(size))

    def compiles(self) -> int:
        return sum(len(names) for size, names in self.asked if self.takes(size))


@dataclass
class SeveralGraphs(FakeCompiler):
    """A step of two graphs: one is compiled at once, the `other` on request. `completed`: the sizes of requests."""

    other: Curve = float
    partial: bool = True
    completed: list[int] = field(default_factory=list)

    def __call__(self, size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        found = super().__call__(size, names)
        return {name: replace(point, partial=self.partial and point.status == "fits") for name, point in found.items()}

    def complete(self, size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        assert size not in self.completed
        self.completed.append(size)
        [name] = names
        needs = max(self.other, self.curves[name], key=lambda curve: curve(size))
        return {name: FakeCompiler({name: needs}).point(size, name)}


def line(size: float) -> float:
    """A training step: 1.75 GiB of weights and state, and 0.13 GiB for each row. 107 rows fit."""
    return (1.75 + 0.1308 * size) * GIB


def tiles(rows: int) -> Curve:
    """The same with batches that are padded to whole tiles."""
    return lambda size: line(-(-size // rows) * rows)


def bent(size: int) -> float:
    """The same where the compiler computes values again near the limit: 120 rows fit."""
    needed = line(size)
    return needed if needed < 15 * GIB else 15 * GIB + 0.43 * (needed - 15 * GIB)


def find(curve: Curve | FakeCompiler, start: int = 32, **options: Any) -> tuple[FitResult, FakeCompiler]:
    compiler = curve if isinstance(curve, FakeCompiler) else FakeCompiler({"v5e-8": curve})
    [found] = search("batch", start, [Tpu("v5e-8", 8)], compiler, **options)
    return found, compiler


def exhaustive(curve: Curve, highest: int, available: float = V5E) -> int | None:
    return max((size for size in range(1, highest + 1) if curve(size) <= available), default=None)


def proved(found: FitResult) -> bool:
    """The largest was compiled and fits, and the next one was compiled and does not."""
    known = {point.size: point.status for point in found.points}
    assert found.largest is not None
    return known.get(found.largest) == "fits" and known.get(found.largest + 1) == "too-large"


# What libtpu 0.0.52 said for v5e of a training step of a small transformer (two layers, 512 wide, 256 tokens), in GiB.
# Near the limit values are computed again instead of kept: the curve bends far from its first line, and not evenly.
FITTING = {32: 0.982, 512: 14.227, 560: 14.458, 824: 14.984, 864: 15.072, 884: 15.419, 896: 15.189, 900: 15.696}
RECORDED = FITTING | {901: 15.714, 902: 15.731, 903: 15.7505, 904: 15.7509, 1136: 22.56, 1208: 23.98}


# The same with a smaller vocabulary: 920 rows need more than 940 do.
UNEVEN = {32: 0.935, 920: 15.152, 940: 15.032, 1024: 16.87, 1136: 18.83, 2048: 34.27, 4096: 68.35}


def through(points: Mapping[int, float]) -> Curve:
    """Straight between the sizes that were compiled, and beyond them."""
    known = sorted(points)

    def curve(size: int) -> float:
        left = max([one for one in known[:-1] if one <= size], default=known[0])
        right = known[known.index(left) + 1]
        share = (size - left) / (right - left)
        return (points[left] + share * (points[right] - points[left])) * GIB

    return curve


recorded, uneven = through(RECORDED), through(UNEVEN)


# -- curves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 8, 32, 100, 106, 107, 108, 512, 4096])
def test_a_straight_line_takes_few_compiles(start: int) -> None:
    found, compiler = find(line, start)
    assert (found.largest, found.nice) == (107, 104)
    assert proved(found)
    assert compiler.compiles() == len(found.points) <= 6
    assert found.notes == ("batch = 107 fits, 108 does not: both were compiled.",)
    assert (found.beyond, found.exact, found.interrupted, found.best) == (108, True, False, 104)


@pytest.mark.parametrize("start", [1, 8, 32, 100, 512])
@pytest.mark.parametrize("curve", [tiles(8), bent, tiles(128)], ids=["tiles of 8", "bent", "tiles of 128"])
def test_tiles_and_what_is_computed_again(curve: Curve, start: int) -> None:
    roomy = 10 * V5E
    compiler = FakeCompiler({"v5e-8": curve}, {"v5e-8": roomy if curve(1) == curve(128) else V5E})
    found, _ = find(compiler, start)
    assert found.largest == exhaustive(curve, 3000, compiler.available["v5e-8"])
    assert proved(found)
    assert found.largest is not None and found.nice == found.largest // 8 * 8
    assert len(found.points) <= 2 * math.log2(max(point.size for point in found.points)) + 4


@pytest.mark.parametrize("start", [1, 8, 32, 100, 512, 2048])
def test_a_curve_that_the_compiler_gave(start: int) -> None:
    """It bends so far that the line through the first points is off by half."""
    found, _ = find(recorded, start)
    assert (found.largest, found.nice) == (exhaustive(recorded, 1500), 896) == (902, 896)
    assert proved(found)
    assert len(found.points) <= 2 * math.log2(1500)
    assert sum(point.status == "fits" for point in found.points) <= 7, "each takes up to minutes"


def test_the_result_has_what_was_tried_in_that_order() -> None:
    found, compiler = find(line)
    assert (found.target, found.name, found.ranks) == ("v5e-8", "batch", 8)
    assert [point.size for point in found.points] == [size for size, _ in compiler.asked]
    assert found.points[0] == compiler.point(32, "v5e-8")


CURVES = st.lists(st.integers(0, 40), min_size=1, max_size=120)


@given(CURVES, st.integers(1, 160), st.integers(1, 2000), st.booleans())
def test_any_rising_curve_gives_what_trying_all_gives(
    steps: list[int], start: int, available: int, measured: bool
) -> None:
    highest = max(160, start)
    total = [sum(steps[: size + 1]) + max(0, size - len(steps)) for size in range(highest + 1)]
    compiler = FakeCompiler({"v5e-8": total.__getitem__}, {"v5e-8": available}, measured=measured)
    found, _ = find(compiler, start, highest=highest)
    largest = exhaustive(total.__getitem__, highest, available)
    assert found.largest == largest
    assert found.nice == ((largest or 0) // 8 * 8 or None)
    assert largest in (None, highest) or proved(found)
    assert len(found.points) <= 2 * math.log2(highest) + 5


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0, 0.9))
def test_any_straight_line_takes_six(largest: int, start: int, constant: float) -> None:
    available = 100 * GIB
    per_row = available * (1 - constant) / (largest + 0.5)
    compiler = FakeCompiler({"v5e-8": lambda size: available * constant + per_row * size}, {"v5e-8": available})
    found, _ = find(compiler, start)
    assert found.largest == largest and proved(found)
    # A leap of more than 64 times is taken in two.
    assert len(found.points) <= 6 + (largest > 64 * start)


def test_sizes_without_known_memory_are_doubled_and_halved() -> None:
    found, compiler = find(FakeCompiler({"v5e-8": line}, measured=False))
    assert found.largest == 107 and proved(found)
    assert [size for size, _ in compiler.asked][:3] == [32, 64, 128]


# -- large sizes ----------------------------------------------------------------------------------------------------


def leaping(rows: float) -> Curve:
    """So many rows fit; near the limit it leaps, and goes on less steeply."""
    per_row = 14 * GIB / rows
    return lambda size: GIB + per_row * size if size < 0.9 * rows else V5E - 0.3 * per_row * (rows - size)


def kinked(rows: float) -> Curve:
    """So many rows fit; from 0.4 of them on values are computed again."""
    knee = 0.75 * V5E
    return lambda size: GIB + (knee - GIB) * size / (0.4 * rows) if size < 0.4 * rows else beyond(knee, size / rows)


def beyond(knee: float, part: float) -> float:
    return knee + (V5E - knee) * (part - 0.4) / 0.6


def straight(rows: float) -> Curve:
    return lambda size: GIB + (V5E - GIB) * size / rows


def settled(found: FitResult, part: float = TOLERANCE) -> bool:
    """The largest and a larger one within that part of it were compiled."""
    known = {point.size: point.status for point in found.points}
    assert found.largest is not None and found.beyond is not None
    between = found.beyond - found.largest
    return known[found.largest] == "fits" and known[found.beyond] == "too-large" and between <= part * found.largest


@pytest.mark.parametrize("rows", [4200, 50_003, 746_722])
@pytest.mark.parametrize("start", [1, 32, 5003, 1_000_000])
@pytest.mark.parametrize(("large", "tries"), [(straight, 7), (kinked, 10), (leaping, 16)])
def test_large_sizes_are_settled_to_one_percent(
    large: Callable[[float], Curve], tries: int, start: int, rows: int
) -> None:
    found, compiler = find(large(rows), start)
    assert settled(found) and not found.exact
    assert found.largest is not None and found.beyond is not None and found.nice is not None
    assert found.largest <= rows < found.beyond, "what fits lies between the two"
    assert found.nice % 8 == 0 and found.largest - 8 < found.nice
    assert len(found.points) <= tries
    assert compiler.point(found.nice, "v5e-8") in found.points, "it was compiled"
    assert found.notes[-1] == (
        f"The largest batch lies between {found.largest:,} and {found.beyond:,}: sizes of 4,096 and more are searched "
        "to 1 % only."
    )
    exact, _ = find(large(rows), start, tolerance=0)
    assert exact.largest == rows and proved(exact) and exact.exact and len(exact.points) >= len(found.points)


@given(st.integers(EXACT_BELOW, HIGHEST - 1), st.integers(1, HIGHEST), st.integers(1, 2048), st.booleans())
def test_any_large_step_curve_is_settled(rows: int, start: int, tile: int, measured: bool) -> None:
    compiler = FakeCompiler({"v5e-8": lambda size: -(-size // tile)}, {"v5e-8": -(-rows // tile)}, measured=measured)
    found, _ = find(compiler, start)
    truth = min(-(-rows // tile) * tile, HIGHEST)
    assert found.largest is not None and found.largest <= truth
    assert truth - found.largest <= TOLERANCE * truth
    assert found.nice is not None and found.nice % 8 == 0 and found.nice > found.largest - 8
    assert found.largest == HIGHEST or settled(found)
    assert len(found.points) <= 2 * math.log2(HIGHEST)


@pytest.mark.parametrize("rows", [EXACT_BELOW - 1, EXACT_BELOW - 2])
def test_just_below_it_is_exact(rows: int) -> None:
    found, _ = find(leaping(rows), 32)
    assert found.largest == rows and proved(found) and found.exact


def test_where_many_devices_share_a_large_batch() -> None:
    """A nice one has 8 rows on each of 512 devices."""
    [found] = search("batch", 32, [Tpu("v5e-8", 1, 512)], FakeCompiler({"v5e-8": kinked(50_003)}))
    assert settled(found) and found.largest is not None
    assert found.nice == found.largest // 4096 * 4096
    assert any(point.size == found.nice and point.status == "fits" for point in found.points)


def test_a_large_limit_of_the_function() -> None:
    """A data set of 70,000 rows."""
    found, _ = find(FakeCompiler({"v5e-8": kinked(746_722)}, takes=lambda size: size <= 70_000))
    assert found.largest is not None and 0.99 * 70_000 <= found.largest <= 70_000 < (found.beyond or 0)
    assert "the function itself fails: ValueError: bad batch" in found.notes[0] and not found.exact
    assert "lies between" in found.notes[1]


# -- how many compiles ----------------------------------------------------------------------------------------------


def light(size: float) -> float:
    """Most of the memory is that of weights and state: 108 rows fit."""
    return (11 + 0.0437 * size) * GIB


EVERY = (line, light, tiles(8), bent, recorded, uneven)
EVERY += tuple(curve(rows) for curve in (straight, kinked, leaping) for rows in (3000, 50_003))


def counts(graphs: int, curve: Curve, start: int) -> tuple[int, int]:
    """Compiles that fit, with those of the first size, and refused ones. `graphs`: of a step, the first the largest."""
    compiler = SeveralGraphs({"v5e-8": curve}, other=lambda size: curve(size) - GIB, partial=graphs > 1)
    found, _ = find(compiler, start, complete=compiler.complete)
    fits = [point for point in found.points if point.status == "fits"]
    first = graphs > 1 and found.points[0].partial  # SearchProbe has all graphs of the first size
    return len(fits) + len(compiler.completed) + first, len(found.points) - len(fits)


@pytest.mark.parametrize(
    ("graphs", "mean", "worst"),
    [(1, 4.1, 7), (2, 6.5, 10)],  # 5.3 and 9, 10.5 and 18 where the tries come from below, each with all graphs
)
def test_few_compiles_fit(graphs: int, mean: float, worst: int) -> None:
    """Those take up to minutes, a refusal seconds."""
    found = [counts(graphs, curve, start) for curve in EVERY for start in (1, 8, 32, 512)]
    fits, refused = zip(*found, strict=True)
    assert sum(fits) / len(fits) <= mean and max(fits) <= worst
    assert sum(refused) / len(refused) <= 4.4 and max(refused) <= 14


def test_few_traces_for_several_targets() -> None:
    targets = [Tpu("v5e-1"), Tpu("v5e-8"), Tpu("v6e-8")]
    traces = []
    for curve in EVERY:
        for start in (8, 512):
            compiler = FakeCompiler({one.name: curve for one in targets}, {"v6e-8": 31.25 * GIB})
            search("batch", start, targets, compiler)
            traces.append(len(compiler.asked))
    assert sum(traces) / len(traces) <= 13.2 and max(traces) <= 25


# -- the edges ------------------------------------------------------------------------------------------------------


def heavy_where(matches: Callable[[int], bool]) -> Curve:
    """Sizes that do not fit whatever their neighbours do."""
    return lambda size: 16 * GIB if matches(size) else line(size)


NO_NICE = "No multiple of 8 is known to fit: "


@pytest.mark.parametrize(
    ("curve", "start", "options", "largest", "nice", "note"),
    [
        (lambda size: 20 * GIB + line(size), 32, {}, None, None, "Not even batch = 1 fits (compiled)."),
        (line, 300, {"lowest": 200}, None, None, "Not even batch = 200 fits (compiled)."),
        (lambda size: 8 * GIB * size, 512, {}, 1, None, NO_NICE + "there is none up to 1."),
        (heavy_where(lambda size: size % 8 == 0), 107, {}, 107, None, NO_NICE + "none of 104, 96, 88, 80 fits."),
        (line, 5000, {}, 107, 104, "batch = 107 fits, 108 does not: both were compiled."),
        (line, 32, {"highest": 100}, 100, 96, "batch = 100 fits (compiled); nothing larger was tried."),
    ],
)
def test_edges(
    curve: Curve, start: int, options: dict[str, int], largest: int | None, nice: int | None, note: str
) -> None:
    found, compiler = find(curve, start, **options)
    assert (found.largest, found.nice) == (largest, nice) and found.notes[-1] == note
    if largest is None:
        assert found.points[-1].size == options.get("lowest", 1) and (options or compiler.compiles() <= 4)
    else:
        assert largest == 100 or proved(found)
    assert nice is None or found.notes == (note,)


def test_without_a_limit_there_is_one() -> None:
    found, compiler = find(lambda size: 1000 + size)
    assert found.largest == HIGHEST == 2**20
    assert "nothing larger was tried" in found.notes[0]
    sizes = [size for size, _ in compiler.asked]
    assert all(sizes[nth + 1] <= 64 * sizes[nth] for nth in range(len(sizes) - 1)), "the batch is made on this host"


@pytest.mark.parametrize(("start", "options"), [(0, {}), (9, {"lowest": 10}), (9, {"highest": 8}), (9, {"lowest": 0})])
def test_a_start_outside_of_the_range_is_refused(start: int, options: dict[str, int]) -> None:
    with pytest.raises(TpuMagicsError, match=f"The search for the largest batch cannot start at {start}"):
        find(line, start, **options)


def test_memory_that_does_not_grow_evenly_is_told() -> None:
    """107 and 106 fit, and 104 does not."""
    found, _ = find(heavy_where(lambda size: size == 104), 107)
    assert (found.largest, found.nice) == (107, 96)
    assert proved(found)
    assert "batch = 104 does not fit although 107 does" in found.notes[1]


@pytest.mark.parametrize(("devices", "nice"), [(1, 104), (4, 96), (8, 64), (16, None)])
def test_where_devices_share_the_batch_each_has_a_multiple_of_eight(devices: int, nice: int | None) -> None:
    """SPMD: 104 rows over 8 devices are 13 on each."""
    [found] = search("batch", 32, [Tpu("v5e-8", 1, devices)], FakeCompiler({"v5e-8": line}))
    assert (found.largest, found.nice, found.devices) == (107, nice, devices) and proved(found)
    if nice is None:
        assert found.notes[-1] == "No multiple of 128 is known to fit: there is none up to 107."


# -- no answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "said"),
    [("refused", "was refused: no such op."), ("failed", "gave no answer: no such op.")],
)
def test_a_compile_without_an_answer_ends_the_search_for_its_target(status: str, said: str) -> None:
    compiler = FakeCompiler({"v5e-8": line, "v6e-8": line}, {"v6e-8": 31 * GIB})
    compiler.instead = {(672, "v5e-8"): FitPoint(672, status, error="no such op", graph="graph of 672")}
    first, second = search("batch", 32, [Tpu("v5e-8", 8), Tpu("v6e-8", 8)], compiler)
    assert [point.size for point in first.points] == [32, 672]
    assert (first.largest, first.nice) == (None, None)
    assert first.notes == (
        f"The search ended early: the compile for batch = 672 {said}",
        "batch = 32 fits; the largest that fits is unknown.",
    )
    assert second.largest == 223 and proved(second)


def test_a_first_compile_without_an_answer() -> None:
    compiler = FakeCompiler({"v5e-8": line})
    compiler.instead = {(32, "v5e-8"): FitPoint(32, "refused", error="no such op.")}
    found, _ = find(compiler)
    assert len(found.points) == 1 and found.largest is None
    assert found.notes == ("The search ended early: the compile for batch = 32 was refused: no such op.",)


def test_a_function_that_fails_at_the_start_says_its_own_error() -> None:
    with pytest.raises(TpuMagicsError, match="bad batch 32"):
        find(FakeCompiler({"v5e-8": line}, takes=lambda size: False))


@pytest.mark.parametrize("number", [3, 6, 8, 16, 32])
def test_a_function_that_takes_multiples_only(number: int) -> None:
    found, compiler = find(FakeCompiler({"v5e-8": line}, takes=lambda size: size % number == 0), 96)
    assert found.largest == 107 // number * number
    assert found.nice == max(size for size in range(number, 108, number) if size % 8 == 0)
    failed = [point for point in found.points if point.status == "failed"]
    assert failed and all("bad batch" in point.error for point in failed)
    assert any(f"Only multiples of {number} were tried" in note and "bad batch" in note for note in found.notes)
    assert compiler.compiles() <= 6 and len(found.points) <= 12


def test_a_function_that_takes_sizes_up_to_a_limit() -> None:
    """A data set of 70 rows."""
    found, compiler = find(FakeCompiler({"v5e-8": line}, takes=lambda size: size <= 70))
    assert (found.largest, found.nice) == (70, 64)
    assert found.notes[0] == (
        "batch = 70 fits (compiled); with 71 the function itself fails: ValueError: bad batch 71."
    )
    assert compiler.compiles() <= 6


def test_multiples_up_to_a_limit() -> None:
    found, _ = find(FakeCompiler({"v5e-8": line}, takes=lambda size: size % 8 == 0 and size <= 70))
    assert (found.largest, found.nice) == (64, 64)


@pytest.mark.parametrize(
    ("ran", "failed", "step"),
    [
        ([32], [], 1),
        ([32], [57], 2),
        ([32], [57, 106], 4),
        ([32, 104], [57, 106, 108], 8),
        ([32, 57], [5003], 1),
        ([48], [5003, 1000, 96], 1),  # 96 is a multiple of all that 48 is one of: a limit, not a step
        ([80], [176, 160, 120, 100, 90, 85, 82, 81], 4),  # 84 lies between
        ([9, 10], [7], 1),
    ],
)
def test_what_sizes_are_multiples_of(ran: list[int], failed: list[int], step: int) -> None:
    assert step_of(ran, failed) == step


def test_a_range_in_steps() -> None:
    sizes = Range(9, 30, 8, frozenset({24, 25}))
    assert (sizes.below, sizes.last, sizes.unit) == (8, 24, 8)
    assert (sizes.wall(8), sizes.wall(24)) == (24, None)


# -- a name that changes nothing ------------------------------------------------------------------------------------


def test_a_name_that_changes_nothing() -> None:
    compiler = FakeCompiler({"v5e-8": lambda size: 2 * GIB}, graph=lambda size: "the same")
    with pytest.raises(TpuMagicsError) as caught:
        find(compiler)
    assert caught.value.what == "Changing batch has no effect: 32 and 2016 give the same graph."
    assert "created in an earlier cell" in caught.value.why and "inside the function" in caught.value.todo
    assert compiler.compiles() <= 4


@pytest.mark.parametrize("options", [{"highest": 33}, {"highest": 40, "lowest": 20}, {}])
def test_a_name_that_changes_nothing_near_the_limits(options: dict[str, int]) -> None:
    compiler = FakeCompiler({"v5e-8": lambda size: 20 * GIB}, graph=lambda size: "the same")
    with pytest.raises(TpuMagicsError, match="Changing batch has no effect"):
        find(compiler, **options)


def test_a_function_that_pads_its_batch_is_not_taken_for_that() -> None:
    """32 to 64 give one graph, 65 another."""
    padded = tiles(64)
    found, _ = find(FakeCompiler({"v5e-8": padded}, graph=lambda size: str(-(-size // 64))), 33)
    assert found.largest == exhaustive(padded, 300) == 64


# -- several targets ------------------------------------------------------------------------------------------------


def test_targets_share_traces() -> None:
    """Two of one chip and one of another: a size is traced once for those that want it."""
    targets = [Tpu("v5e-1", 1), Tpu("v5e-8", 8), Tpu("v6e-8", 8)]
    compiler = FakeCompiler({one.name: line for one in targets}, {"v6e-8": 31.25 * GIB})
    found = search("batch", 32, targets, compiler)
    assert [one.largest for one in found] == [107, 107, 225]
    assert [one.ranks for one in found] == [1, 8, 8]
    assert all(proved(one) for one in found)
    assert compiler.asked[0] == (32, ("v5e-1", "v5e-8", "v6e-8"))
    sizes = [size for size, _ in compiler.asked]
    assert len(sizes) == len(set(sizes)), "no size was traced twice"
    assert len(sizes) <= 9


def test_no_targets() -> None:
    assert search("batch", 32, [], FakeCompiler({})) == ()


# -- several graphs -------------------------------------------------------------------------------------------------


def lighter(size: int) -> float:
    """The first step: it has no optimizer state yet."""
    return line(size) - GIB


def test_only_for_the_result_the_other_graphs_are_compiled() -> None:
    compiler = SeveralGraphs({"v5e-8": line}, other=lighter)
    found, _ = find(compiler, complete=compiler.complete)
    assert (found.largest, found.nice) == (107, 104) and proved(found)
    assert compiler.completed == [107, 104]
    assert {point.size for point in found.points if point.partial} == {
        point.size for point in found.points if point.status == "fits"
    } - {107, 104}


@pytest.mark.parametrize("start", [1, 32, 100, 500])
@pytest.mark.parametrize("other", [lambda size: 1.2 * line(size), lambda size: line(size) + (size > 60) * GIB, bent])
def test_where_the_other_graph_needs_more(other: Curve, start: int) -> None:
    compiler = SeveralGraphs({"v5e-8": line}, other=other)
    found, _ = find(compiler, start, complete=compiler.complete)
    assert found.largest == exhaustive(lambda size: max(line(size), other(size)), 500) and proved(found)
    assert found.nice == found.largest // 8 * 8
    assert not any(point.partial for point in found.points if point.size in (found.largest, found.nice))
    assert len(found.points) + len(compiler.completed) <= 20


@given(CURVES, CURVES, st.integers(1, 160), st.integers(1, 2000))
def test_of_two_graphs_the_larger_one_decides(one: list[int], other: list[int], start: int, available: int) -> None:
    def rising(steps: list[int]) -> Curve:
        return lambda size: (sum(steps[: size + 1]) + max(0, size - len(steps))) * V5E / available

    compiler = SeveralGraphs({"v5e-8": rising(one)}, other=rising(other))
    found, _ = find(compiler, start, highest=160, complete=compiler.complete)
    largest = exhaustive(lambda size: max(rising(one)(size), rising(other)(size)), 160)
    assert (found.largest, found.nice) == (largest, (largest or 0) // 8 * 8 or None)
    assert {found.largest, found.nice}.isdisjoint(point.size for point in found.points if point.partial)


def test_an_interrupt_claims_only_what_is_whole() -> None:
    compiler = SeveralGraphs({"v5e-8": line}, other=lighter)

    def completes(size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        if compiler.completed:
            raise KeyboardInterrupt
        return compiler.complete(size, names)

    [found] = search("batch", 100, [Tpu("v5e-8", 8)], compiler, complete=completes)
    assert (found.largest, found.nice, found.best) == (107, None, 107) and found.interrupted
    every = interrupted_after(compiler := SeveralGraphs({"v5e-8": line}, other=lighter), 2)
    [found] = search("batch", 32, [Tpu("v5e-8", 8)], every, complete=compiler.complete)
    assert (found.largest, found.best, found.exact) == (None, None, False)
    assert found.notes[0].startswith("The search was interrupted: no batch is known to fit yet")
    largest = max(point.size for point in found.points if point.status == "fits")
    assert found.notes[1] == (
        f"With batch = {largest} the graph that needs most fits; the other graphs were not compiled yet."
    )


# -- on the way -----------------------------------------------------------------------------------------------------


def test_each_probe_is_announced() -> None:
    lines: list[str] = []
    search("batch", 32, [Tpu("v5e-8"), Tpu("v6e-8")], FakeCompiler({"v5e-8": line, "v6e-8": line}), log=lines.append)
    assert lines[0] == "batch = 32: v5e-8, v6e-8"
    assert lines[-1] == "batch = 107: v5e-8 (104 fits, 108 does not), v6e-8 (104 fits, 108 does not)"


def interrupted_after(compiler: FakeCompiler, probes: int, kind: type[BaseException] = KeyboardInterrupt) -> Any:
    def probe(size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        if len(compiler.asked) == probes:
            raise kind("stop")
        return compiler(size, names)

    return probe


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TrainingInterrupted])
def test_an_interrupt_passes_where_nothing_is_known(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        search("batch", 32, [Tpu("v5e-8")], interrupted_after(FakeCompiler({"v5e-8": line}), 0, kind))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TrainingInterrupted])
@pytest.mark.parametrize(
    ("probes", "largest", "nice", "beyond", "said"),
    [
        (1, 32, 32, None, "batch = 32 fits (compiled), nothing larger was tried yet"),
        (3, 104, 104, 672, "batch = 104 fits (compiled), 672 does not"),
        (4, 104, 104, 108, "batch = 104 fits (compiled), 108 does not"),
    ],
)
def test_an_interrupt_leaves_what_is_known(
    kind: type[BaseException], probes: int, largest: int, nice: int, beyond: int | None, said: str
) -> None:
    compiler = FakeCompiler({"v5e-8": line})
    [found] = search("batch", 32, [Tpu("v5e-8", 8)], interrupted_after(compiler, probes, kind))
    assert (found.largest, found.nice, found.beyond, found.best) == (largest, nice, beyond, nice)
    assert found.interrupted and not found.exact and len(found.points) == probes
    assert found.notes == (f"The search was interrupted: {said}.",)


def test_an_interrupt_before_anything_fits() -> None:
    [found] = search("batch", 5000, [Tpu("v5e-8")], interrupted_after(FakeCompiler({"v5e-8": line}), 1))
    assert (found.largest, found.nice, found.best) == (None, None, None) and found.interrupted
    assert found.notes == ("The search was interrupted: no batch is known to fit yet, 5000 does not.",)


def test_an_interrupt_leaves_what_is_done_as_it_is() -> None:
    """v5e-8 is settled when v6e-8 still has sizes to try."""
    curves = {"v5e-8": line, "v6e-8": bent}
    every = FakeCompiler(curves, {"v6e-8": 20 * GIB})
    search("batch", 108, [Tpu("v5e-8"), Tpu("v6e-8")], every)
    last = max(nth for nth, (_size, names) in enumerate(every.asked) if "v5e-8" in names)
    assert last < len(every.asked) - 1
    compiler = FakeCompiler(curves, {"v6e-8": 20 * GIB})
    targets = [Tpu("v5e-8"), Tpu("v6e-8")]
    first, second = search("batch", 108, targets, interrupted_after(compiler, last + 1))
    assert proved(first) and first.exact and not first.interrupted and first.largest == 107
    assert second.interrupted and not second.exact


def test_other_errors_of_a_probe_pass() -> None:
    def probe(size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        search("batch", 32, [Tpu("v5e-8")], probe)


# -- with the compiler ----------------------------------------------------------------------------------------------

ROW = 16 * 2**20
PROGRAM = """
func.func public @main(%x: tensor<{0}x1024x4096xf32>) -> tensor<{0}x1024x4096xf32> {{
  %0 = stablehlo.tanh %x : tensor<{0}x1024x4096xf32>
  return %0 : tensor<{0}x1024x4096xf32>
}}
"""


def compiled(size: int, target: Target) -> FitPoint:
    graph = LoweredGraph(PROGRAM.format(size).encode(), "stablehlo", f"rows {size}")
    [found] = compile_graphs([graph], target, store=None, on_progress=lambda progress: None)
    assert found.memory is not None, found.error
    memory = found.memory
    return FitPoint(size, found.status, memory.needed, memory.available, found.seconds, found.error, graph.hash)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the compiler, is not installed")
@pytest.mark.process
def test_the_search_finds_what_real_compiles_prove() -> None:
    """A program with 16 MiB of argument and of output for each row, and no temporaries: what fits can be reckoned."""
    targets = parse_all("v5e-1,v6e-1")
    by_name = {one.name: one for one in targets}
    asked: list[int] = []

    def probe(size: int, names: Sequence[str]) -> Mapping[str, FitPoint]:
        asked.append(size)
        return {name: compiled(size, by_name[name]) for name in names}

    for target, found in zip(targets, search("rows", 32, targets, probe), strict=True):
        assert target.chip.available is not None
        assert found.largest == target.chip.available // (2 * ROW)
        assert proved(found) and found.nice == found.largest // 8 * 8
        assert len(found.points) <= 5
    assert len(asked) == len(set(asked)), "no size is traced twice"
