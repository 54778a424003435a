"""The advice of `%tpu_pad` as text, html and drawings."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.panel.parsed import Parsed
from tpu_magics.padding.report import PaddingReport, PadOptions, advise
from tpu_magics.panel.padding import HIGH, WIDE, Dot, histogram, scatter, to_html, to_text

CHOOSER = random.Random(1)
LENGTHS = [min(512, max(8, int(CHOOSER.lognormvariate(4.3, 0.7)))) for _ in range(5000)]
TIMED = PadOptions(compile_seconds=20, tokens_per_second=50_000, epochs=3)
pytestmark = pytest.mark.usefixtures("runs")


def rows(report: PaddingReport) -> list[list[str]]:
    """The table's cells, by the places of its headings."""
    lines = to_text(report).splitlines()
    starts = [match.start() for match in re.finditer("─+", next(line for line in lines if line.startswith("─")))]
    cut = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], 200], strict=True)] for line in lines]
    return [cells for cells in cut[3:] if cells[1]]


# -- text ------------------------------------------------------------------------------------------------------------


def test_text_has_a_row_for_each_way_and_marks_the_choice() -> None:
    report = advise(LENGTHS)
    text = to_text(report)
    assert text.startswith("Padding of the list: 5,000 samples, 8 to 512 tokens, ")
    marked = [line for line in text.splitlines() if line.startswith("✓")]
    assert len(marked) == 1 and report.choice.name in marked[0]
    assert f"Choice: {report.choice.name} (" in text and f"\n\n    {report.choice.code}\n\n" in text
    assert text.count("n/a") == len(report.ways) + 2


def test_only_the_line_of_code_is_long() -> None:
    report = advise(LENGTHS, TIMED)
    assert all(len(line) <= 100 for line in to_text(report).splitlines() if line.strip() != report.choice.code)


def test_seconds_are_shown_as_far_as_they_are_known() -> None:
    heads = {
        TIMED: ["predicted seconds", "compile time"],
        PadOptions(compile_seconds=20): ["predicted compile seconds"],
        PadOptions(tokens_per_second=9): ["predicted step seconds"],
        PadOptions(): ["predicted seconds"],
        PadOptions(plain=True): [],
    }
    for asked, expected in heads.items():
        cells = Parsed(to_html(advise(LENGTHS, asked))).cells
        assert cells[: cells.index("padded to") + 1] == [
            "choice",
            "padding",
            "shapes",
            "padded tokens",
            *expected,
            "padded to",
        ]


def test_what_is_barred_is_said_with_the_reason() -> None:
    text = " ".join(to_text(advise(LENGTHS, PadOptions(ranks=4))).split())
    assert "Excluded: no padding, longest in batch, multiple of 32" in text
    assert "would have different shapes in one step and hang on a TPU" in text


# -- html ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [PadOptions(), TIMED, PadOptions(ranks=8), PadOptions(max_length=30), PadOptions(plain=True)]
)
def test_html_is_well_formed_and_asks_for_nothing(asked: PadOptions) -> None:
    page = Parsed(to_html(advise(LENGTHS, asked)))
    assert page.tags.count("svg") == 2 and page.tags.count("table") == 1
    assert not {"script", "style", "link", "img", "foreignObject"} & set(page.tags)
    assert not [value for _, value in page.attributes if value and ("http" in value or "url(" in value)]


def test_html_says_what_text_says() -> None:
    report = advise(LENGTHS, TIMED)
    page = Parsed(to_html(report))
    for each in report.ways:
        assert each.name in page.cells and each.name.split()[0] in page.text
    assert report.choice.code in page.text and all(note in page.text for note in report.notes)


def test_what_the_person_wrote_is_text() -> None:
    report = advise(LENGTHS, PadOptions(), 'x["<script>alert(1)</script>"]')
    assert "buckets(x" in report.choice.code
    html = to_html(replace(report, what="<b>a</b>"))
    assert "<script>" not in html and "<b>" not in html
    assert "&lt;script&gt;" in html


def test_words_of_drawings_read_as_a_list_where_drawings_are_taken_away() -> None:
    words = re.sub(
        "<[^>]*>", "", scatter([Dot("one way", 1, 0.5, "chosen"), Dot("another", 9, 0.2)], "shapes", "padded")
    )
    assert words.endswith("padded, shapes, one way, another, ")
    assert "0 %, 15 %, 30 %, 45 %, 60 %, 1, 2, 5, " in words


def test_lengths_that_are_all_alike_have_no_drawing() -> None:
    assert "<svg" not in to_html(advise([128] * 50))
    assert "128 tokens each" in to_text(advise([128] * 50))
    assert "Padding of the list: 1 sample, 9 tokens each" in to_text(advise([9]))


# -- drawings ----------------------------------------------------------------------------------------------------------


def texts(svg: str) -> list[tuple[float, float, str]]:
    found = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="\w+"[^>]*>([^<]*)</text>', svg)
    return [(float(x), float(y), word) for x, y, word in found]


def test_ways_that_cost_the_same_are_one_dot() -> None:
    svg = scatter([Dot("a", 1, 0.5), Dot("b", 1, 0.5, "chosen"), Dot("c", 3, 0.1)], "shapes", "padded")
    assert "b = a" in svg and svg.count("<circle") == 3  # one is a ring around the chosen
    many = scatter([Dot(name, 1, 0.5) for name in "abcd"], "shapes", "padded")
    assert "a and 3 more" in many


DOTS = st.lists(
    st.tuples(st.integers(1, 3000), st.floats(0, 0.999)).map(lambda at: Dot("multiple of 64", *at)),
    min_size=1,
    max_size=12,
)


@given(DOTS)
def test_all_stays_inside(dots: list[Dot]) -> None:
    svg = scatter([replace(dots[0], state="chosen"), *dots[1:]], "shapes", "padded")
    for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.-]+)"', svg):
        assert 0 <= float(x) <= WIDE and 0 <= float(y) <= HIGH
    for x, y, _word in texts(svg):
        assert -1 <= x <= WIDE and 0 <= y <= HIGH


def test_names_do_not_lie_on_each_other() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        lengths = [
            max(8, int(chance.lognormvariate(chance.uniform(3, 6), chance.uniform(0.2, 1.2)))) for _ in range(2000)
        ]
        html = to_html(advise(lengths, PadOptions(batch=chance.choice((8, 32)))))
        words = [each for each in texts(html.split("<svg")[1]) if re.match("best|mult|max|no |long", each[2])]
        for number, (x, y, word) in enumerate(words):
            for other_x, other_y, other in words[number + 1 :]:
                apart = x + 6 * len(word) <= other_x or other_x + 6 * len(other) <= x
                assert apart or abs(y - other_y) >= 12, (seed, word, other)


@given(st.dictionaries(st.integers(1, 100_000), st.integers(1, 10**6), min_size=1, max_size=60), st.integers(1, 5))
def test_bars_and_bounds_stay_inside(counts: Mapping[int, int], many: int) -> None:
    svg = histogram(counts, sorted(counts)[-many:], "tokens", "samples")
    for x, y, wide, high in re.findall(r'<rect x="([\d.-]+)" y="([\d.-]+)" width="([\d.-]+)" height="([\d.-]+)"', svg):
        assert float(x) >= 0 and float(x) + float(wide) <= WIDE
        assert float(y) >= 0 and float(y) + float(high) <= HIGH
    assert svg.count("stroke-dasharray") == min(many, len(counts))


def test_skewed_lengths_are_drawn_by_their_logarithm() -> None:
    assert "tokens, logarithmic" in histogram({10: 90, 5000: 1}, [5000], "tokens", "samples")
    assert "logarithmic" not in histogram({10: 90, 50: 1}, [50], "tokens", "samples")
