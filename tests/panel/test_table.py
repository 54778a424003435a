"""Tables as text and as HTML."""

from __future__ import annotations

import re

import pytest

from tests.panel.parsed import Parsed
from tpu_magics.panel.table import Row, Table, state_text, to_html, to_text

RUNS = Table(
    "Runs",
    ("name", "status", "steps"),
    (Row(("first", "done", "120"), "ok"), Row(("a-second-one", "failed", "7"), "broken")),
    ("Two runs.",),
)


# -- text ----------------------------------------------------------------------------------------------------------


def test_text_is_aligned():
    assert to_text(RUNS).split("\n") == [
        "Runs",
        "          name          status  steps",
        "────────  ────────────  ──────  ─────",
        "✓ ok      first         done    120",
        "✗ broken  a-second-one  failed  7",
        "Two runs.",
    ]


@pytest.mark.parametrize(
    ("table", "width", "text"),
    [
        (Table("", ("a", "b"), (Row(("1", "2")),)), 100, "a  b\n─  ─\n1  2"),  # no column for states
        (Table("Host", None, (Row(("Place", "Colab")), Row(("TPU", "none")))), 100, "Host\nPlace  Colab\nTPU    none"),
        (Table("", None, (Row(("a",)), Row(("b", "c")))), 100, "a\nb  c"),  # a short row
        (
            Table("", None, (Row(("Problem", "what\nwhy")), Row(("b", "c")))),
            100,
            "Problem  what\n         why\nb        c",
        ),
        (Table("", None, (Row(("模型", "a")), Row(("abcdef", "b")))), 100, "模型    a\nabcdef  b"),
        (Table("", None, (Row(("abcdef", "b")), Row(("e\u0301", "c")))), 100, "abcdef  b\ne\u0301       c"),
        (Table("", None, (Row(("模" * 30,)),)), 20, "\n".join(["模" * 10] * 3)),
        (Table("T", None, (), ("one two three four five six",)), 12, "T\none two\nthree four\nfive six"),
    ],
)
def test_text_as_it_stands(table: Table, width: int, text: str) -> None:
    assert to_text(table, width) == text


@pytest.mark.parametrize("columns", [None, ("a", "b")])
def test_a_table_without_rows(columns):
    text = to_text(Table("Nothing", columns, (), ("There are no runs yet.",)))
    assert text.startswith("Nothing\n")
    assert text.endswith("There are no runs yet.")
    assert ("a  b" in text) == (columns is not None)


@pytest.mark.parametrize(
    ("state", "text"), [("", ""), ("ok", "✓ ok"), ("warning", "! warning"), ("broken", "✗ broken")]
)
def test_a_state_is_a_symbol_and_a_word(state, text):
    assert state_text(state) == text


def test_an_unknown_state_is_refused():
    with pytest.raises(ValueError, match=r"A row's state is one of '', 'ok', 'warning', 'broken', .*, not 'bad'"):
        Row(("a",), "bad")


def test_wide_cells_are_wrapped_and_nothing_is_lost():
    long = " ".join(f"word{number}" for number in range(60))
    text = to_text(Table("", None, (Row(("left", long, "right")), Row(("x", "y", "z")))), width=60)
    lines = text.split("\n")
    assert max(map(len, lines)) <= 60
    assert [word for word in text.split() if word.startswith("word")] == long.split()
    assert lines[0].startswith("left  word0 word1")
    assert lines[0].endswith("  right")
    assert all(line.startswith("      ") for line in lines[1:-1])
    assert re.fullmatch(r"x     y +z", lines[-1])


def test_a_word_that_is_too_long_is_broken():
    text = to_text(Table("", None, (Row(("path", "/" + "x" * 100)),)), width=40)
    assert max(map(len, text.split("\n"))) <= 40
    assert text.count("x") == 100


def test_no_word_of_usual_length_is_cut_although_there_is_little_room() -> None:
    columns = ("rank", "host", "state", "in collectives", "recompiles", "proportional")
    row = Row(("0", "first", "failed (exit code 1)", "n/a (not reported)", "0", "n/a"))
    table = Table("Ranks", columns, (row,))
    text = to_text(table, width=62)
    words = {word for cell in (*columns, *row.cells) for word in cell.split()}
    assert words <= set(text.split())
    assert max(map(len, text.splitlines())) <= 62
    assert max(map(len, to_text(table, width=58).splitlines())) <= 58  # less than its words need


@pytest.mark.parametrize("bad", ["\x1b[31mred", "bell\x07", "back\rspace", "\u202egpj.exe"])
def test_control_characters_reach_neither_terminal_nor_page(bad):
    table = Table(bad, None, (Row((bad,)),), (bad,))
    for rendered in (to_text(table), to_html(table)):
        assert not any(ch in rendered for ch in "\x1b\x07\r\u202e")
        assert rendered.count("�") == 3


# -- HTML ----------------------------------------------------------------------------------------------------------


def test_html_has_every_cell_in_its_place():
    parsed = Parsed(to_html(RUNS))
    assert parsed.rows == [
        ["", "name", "status", "steps"],
        ["✓ ok", "first", "done", "120"],
        ["✗ broken", "a-second-one", "failed", "7"],
    ]
    assert parsed.tags.count("th") == 4


def test_html_without_columns_has_no_head():
    parsed = Parsed(to_html(Table("Host", None, (Row(("Place", "Colab")),))))
    assert parsed.rows == [["Place", "Colab"]]
    assert "thead" not in parsed.tags and "th" not in parsed.tags


EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</td></tr></table><iframe src='//x'>",
    "&lt;script&gt; &amp;",
]


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("where", ["title", "column", "cell", "note"])
def test_html_escapes_whatever_it_is_given(evil, where):
    names = ("title", "column", "cell", "note")

    def html_with(word):
        text = {name: word if name == where else name for name in names}
        return to_html(Table(text["title"], (text["column"],), (Row((text["cell"],), "warning"),), (text["note"],)))

    html, harmless = html_with(evil), html_with(re.sub(r"\S", "x", evil))
    parsed = Parsed(html)
    assert parsed.tags == Parsed(harmless).tags
    assert parsed.attributes == Parsed(harmless).attributes
    assert "<script" not in html
    if where in ("column", "cell"):
        assert evil in parsed.cells


def test_html_brings_no_script_no_asset_and_no_colour():
    html = to_html(Table("t", ("a", "b"), (Row(("1", "2"), "ok"), Row(("3", "4"), "broken")), ("n",)))
    parsed = Parsed(html)
    assert {name for name, _ in parsed.attributes} <= {"style", "class"}
    assert not {"script", "style", "link", "img", "iframe"} & set(parsed.tags)
    assert "url(" not in html and "http" not in html
    values = re.findall(r"(?<![-\w])(?:color|background(?:-color)?|border[-\w]*):([^;\"]+)", html)
    assert values
    assert all(re.fullmatch(r"inherit|1px solid currentColor|collapse", value) for value in values), values
    assert "#" not in html and "rgb" not in html


def test_html_fits_600_pixels():
    """Nothing has a fixed width; long words may break, short ones stay whole, and what is left can be scrolled."""
    html = to_html(Table("t", None, (Row(("Framework", "x" * 500)),)))
    assert not re.search(r"(?<!max-)width:", html)
    (label, text) = re.findall(r"<td[^>]*>", html)
    assert "overflow-wrap:anywhere" in text
    assert "overflow-wrap" not in label
    assert "overflow-x:auto" in html


@pytest.mark.parametrize(
    ("cell", "kept"),
    [("≥ 12.1 µs", True), ("2.43 MB", True), ("57 %", True), ("65 of 131", False), ("fits 10 MiB of 15.75 GiB", False)],
)
def test_a_figure_is_kept_beside_its_unit(cell: str, kept: bool):
    assert ("white-space:nowrap" in to_html(Table("", None, (Row((cell,)),)))) == kept


# -- headings of groups --------------------------------------------------------------------------------------------

GROUPED = Table(
    "All",
    None,
    (Row(("A group with <a long name>",), heading=True), Row(("one", "x"), "ok"), Row(("two", "y"), "not available")),
)


def test_a_heading_stands_above_its_rows_and_widens_no_column():
    assert to_text(GROUPED).split("\n") == [
        "All",
        "",
        "A group with <a long name>",
        "✓ ok   one  x",
        "- n/a  two  y",
    ]


def test_a_heading_spans_all_columns_in_html():
    html = to_html(GROUPED)
    assert '<th colspan="3"' in html and "A group with &lt;a long name&gt;" in html
    assert Parsed(html).rows[0] == ["A group with <a long name>"]
