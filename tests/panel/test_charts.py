"""Curves as a line of text, and as drawings with axes."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tests.panel.parsed import Parsed
from tpu_magics.panel.charts import LARGE, SMALL, ChartSize, line_chart, sparkline
from tpu_magics.panel.html_parts import GREEN
from tpu_magics.panel.page import Axis, Chart

NAN, INF = math.nan, math.inf
MOST = 1.7976931348623157e308


def chart(values: list[float], axis: Axis = "number", **fields: Any) -> Chart:
    points = tuple((step, value, value, value) for step, value in enumerate(values))
    return Chart(**{"key": "loss", "title": "loss", "caption": "2 → 1", "points": points, "axis": axis, **fields})


def levels(drawn: str) -> list[str]:
    """The words at the left, from the lowest on."""
    return re.findall(r'<text x="-7" y="-?\d+">([^<]*)</text>', drawn)


def ticks(drawn: str) -> list[str]:
    """The words below, without the axis' name."""
    return re.findall(r'<text x="[\d.]+%" y="\d+">([^<]*)</text>', drawn)


def paths(drawn: str) -> list[list[tuple[int, int]]]:
    """The places that each path goes through."""
    found = []
    for d in re.findall(r'<path d="([^"]*)"', drawn):
        places: list[tuple[int, int]] = []
        for kind, rest in re.findall(r"([MLlhvz])([^MLlhvz]*)", d):
            numbers = [int(one) for one in re.findall(r"-?\d+", rest)]
            if kind in "hv":
                x, y = places[-1]
                places.append((x + numbers[0], y) if kind == "h" else (x, y + numbers[0]))
            for dx, dy in zip(numbers[::2], numbers[1::2], strict=False) if kind in "Ml" else ():
                places.append((dx, dy) if kind == "M" else (places[-1][0] + dx, places[-1][1] + dy))
        found.append(places)
    return found


@pytest.mark.parametrize(
    ("numbers", "width", "line"),
    [
        ([], 8, ""),
        ([5.0], 8, "▅"),
        ([1.0, 1.0], 8, "▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, NAN, 1.0], 8, "▁!█"),
        ([0.0, INF, 1.0], 8, "▁!█"),
        ([-1e308, 1e308], 8, "▁█"),
        (list(range(100)), 4, "▁▃▆█"),
    ],
)
def test_a_curve_as_text(numbers: list[float], width: int, line: str) -> None:
    assert sparkline(numbers, width) == line


@pytest.mark.parametrize(
    ("values", "axis", "words"),
    [
        ([2.31, 1.2, 0.4], "number", ["0", "0.5", "1", "1.5", "2", "2.5"]),
        ([0.91, 0.93, 0.935], "number", ["0.91", "0.915", "0.92", "0.925", "0.93", "0.935"]),
        ([5e-5, 4e-5, 1e-5], "number", ["1e-05", "2e-05", "3e-05", "4e-05", "5e-05"]),
        ([-2.0, 3.0], "number", ["-2", "-1", "0", "1", "2", "3"]),
        ([3.0, 3.0, 3.0], "number", ["2.6", "2.8", "3", "3.2", "3.4"]),
        ([0.0, 0.0], "number", ["0", "1"]),
        ([0.005, 0.0061, 0.0058], "seconds", ["0 ms", "2 ms", "4 ms", "6 ms", "8 ms"]),
        ([70.0, 130.0], "seconds", ["0 min", "0.5 min", "1 min", "1.5 min", "2 min", "2.5 min"]),
        ([8e8, 9e8], "bytes", ["0 MiB", "200 MiB", "400 MiB", "600 MiB", "800 MiB", "1,000 MiB"]),
        ([190.0, 200.0], "rate", ["0/s", "50/s", "100/s", "150/s", "200/s"]),
    ],
)
def test_levels_are_nice_and_have_units(values: list[float], axis: Axis, words: list[str]) -> None:
    assert levels(line_chart(chart(values, axis))) == words


def test_steps_stand_below_and_samples_over_time_have_none() -> None:
    assert ticks(line_chart(chart([1.0] * 441))) == ["0", "100", "200", "300", "400"]
    assert ticks(line_chart(chart([1.0, 2.0]))) == ["0", "1"]
    assert ticks(line_chart(chart([1.0] * 10, x=""))) == []
    assert ticks(line_chart(chart([1.0] * 441), size=SMALL)) == ["0", "200", "400"]


def test_a_loss_over_decades_has_a_logarithmic_scale() -> None:
    drawn = line_chart(chart([10 ** (1 - at / 10) for at in range(41)]))
    assert levels(drawn) == ["0.001", "0.01", "0.1", "1", "10"]
    [_grid, line] = paths(drawn)
    slopes = {b[1] - a[1] for a, b in pairwise(line)}
    assert slopes <= {8, 9}, "a straight line"
    assert levels(line_chart(chart([5.0, 1.0, 0.1])))[0] == "0", "less than two decades"
    assert levels(line_chart(chart([1000.0, 1.0, 0.0])))[0] == "0", "0 has no logarithm"


def test_steps_that_compiled_do_not_flatten_the_step_time() -> None:
    drawn = line_chart(chart([2.1, *[0.005, 0.006] * 20], "seconds"))
    assert levels(drawn)[-1] == "10 ms" and "↑ 2.1 s" in drawn
    [_grid, line, cut] = paths(drawn)
    assert cut[0][0] == line[0][0] == 0 and line[0][1] == 0, "its place is marked at the top"
    many = line_chart(chart([2.1, 0.005, 1.9, 0.006, 2.2, 0.007, 2.0], "seconds"))
    assert "↑" not in many and levels(many)[-1] == "2.5 s", "where it is usual, it is shown"


def test_compiles_are_marked_where_they_belong() -> None:
    values = [1.0] * 101
    drawn = line_chart(chart(values, marked=True), (0, 50, 50, 900))
    [_grid, _line, marks] = paths(drawn)
    assert sorted({x for x, _y in marks}) == [0, 500]
    assert len(paths(line_chart(chart(values), (50,)))) == 2


def test_the_range_is_behind_the_curve() -> None:
    points = tuple((step, 1.0, 0.5, 2.0) for step in range(10))
    [_grid, band, line] = paths(line_chart(chart([], points=points)))
    assert len(band) == 2 * len(line) and min(y for _x, y in band) < line[0][1] < max(y for _x, y in band)


def test_saves_are_marked_in_their_own_colour() -> None:
    drawn = line_chart(chart([1.0 - at / 101 for at in range(101)], saved=(20, 40, 900)))
    [_grid, _line, marks] = paths(drawn)
    assert sorted({x for x, _y in marks}) == [200, 400]
    assert drawn.count(GREEN) == 1


def test_what_is_not_finite_is_a_gap_with_a_mark() -> None:
    values = [1.0, 2.0, NAN, 2.0, 1.0]
    [_grid, line, broken] = paths(line_chart(chart(values)))
    assert [x for x, _y in line] == [0, 250, 750, 1000] and {x for x, _y in broken} == {500}
    assert line_chart(chart([1.0])) == line_chart(chart([NAN, NAN, 1.0])) == line_chart(chart([])) == ""


def test_words_read_as_a_list_where_the_drawing_is_taken_away() -> None:
    stripped = re.sub("<[^>]*>", "", line_chart(chart([0.0, 1.0])))
    assert stripped == "0, 0.2, 0.4, 0.6, 0.8, 1, step 0, 1"


def test_what_it_shows_is_told_to_screen_readers() -> None:
    attributes = dict(Parsed(line_chart(chart([1.0, 2.0], title="a<b"))).attributes)
    assert (attributes["role"], attributes["aria-label"]) == ("img", "a<b: 2 → 1")


def test_it_is_small() -> None:
    values = [2.3 * math.exp(-step / 700) + 0.08 * math.sin(step) for step in range(2_000)]
    points = tuple((step, value, value - 0.1, value + 0.1) for step, value in enumerate(values))
    many = chart([], points=points, marked=True)
    assert len(line_chart(many, range(0, 2_000, 3), LARGE)) < 8_000
    assert len(line_chart(many, (), ChartSize(170, 40, 4, 5))) < 2_100  # with its styles


finite = some.floats(-MOST, MOST)


@given(some.lists(finite | some.sampled_from([NAN, INF, -INF]), min_size=2, max_size=30))
@example([MOST, -MOST])
@example([5e-324, 5e-324])
@example([5e-324, 1e-300, 1.0])
@example([1e308, 1.7e308, 1.0])
@example([1e15, 1e15 + 1])
def test_any_numbers_are_drawn_inside_the_field(values: list[float]) -> None:
    for axis in ("number", "seconds", "bytes", "rate"):
        drawn = line_chart(chart(values, axis))  # type: ignore[arg-type]
        Parsed(drawn)
        assert len(levels(drawn)) <= 12 and "nan" not in drawn and "inf" not in drawn
        assert all(0 <= x <= 1000 and 0 <= y <= 340 for path in paths(drawn) for x, y in path)
