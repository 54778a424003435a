"""Tables as text and as HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tpu_magics.panel.table import Row, Table, state_text, to_html, to_text

RUNS = Table(
    "Runs",
    ("name", "status", "steps"),
    (Row(("first", "done", "120"), "ok"), Row(("a-second-one", "failed", "7"), "broken")),
    ("Two runs.",),
)


class Parsed(HTMLParser):
    """All tags that open and close, texts of cells, and attributes, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


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


def test_without_states_there_is_no_column_for_them():
    table = Table("", ("a", "b"), (Row(("1", "2")),))
    assert to_text(table) == "a  b\n─  ─\n1  2"


def test_without_columns_there_is_no_heading():
    assert to_text(Table("Host", None, (Row(("Place", "Colab")), Row(("TPU", "none"))))) == (
        "Host\nPlace  Colab\nTPU    none"
    )


@pytest.mark.parametrize("columns", [None, ("a", "b")])
def test_a_table_without_rows(columns):
    text = to_text(Table("Nothing", columns, (), ("There are no runs yet.",)))
    assert text.startswith("Nothing\n")
    assert text.endswith("There are no runs yet.")
    assert ("a  b" in text) == (columns is not None)


def test_short_rows_are_filled():
    assert to_text(Table("", None, (Row(("a",)), Row(("b", "c"))))) == "a\nb  c"


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


def test_lines_of_a_cell_are_kept():
    text = to_text(Table("", None, (Row(("Problem", "what\nwhy")), Row(("b", "c")))))
    assert text == "Problem  what\n         why\nb        c"


def test_wide_characters_count_two_columns():
    text = to_text(Table("", None, (Row(("模型", "a")), Row(("abcdef", "b")), Row(("e\u0301", "c")))))
    assert text == "模型    a\nabcdef  b\ne\u0301       c"


def test_wide_characters_are_wrapped_by_columns():
    text = to_text(Table("", None, (Row(("模" * 30,)),)), width=20)
    assert text == "\n".join(["模" * 10] * 3)


def test_notes_are_wrapped():
    text = to_text(Table("T", None, (), ("one two three four five six",)), width=12)
    assert text == "T\none two\nthree four\nfive six"


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
    assert parsed.open == []  # every tag is closed, in order
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
        assert evil in [cell for row in parsed.rows for cell in row]


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
