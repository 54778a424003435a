"""The page as static HTML: whole, bare as GitHub shows it, escaped, and in a browser."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.hostile import EVIL, PLACES, harmless, told_in_run_json
from tests.panel.parsed import Parsed
from tests.panel.recorded import started
from tpu_magics.panel.html import flow, to_html
from tpu_magics.panel.html_parts import TONES
from tpu_magics.panel.page import Fact, Page, Section, SectionRow
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.run_view import RunView

CHROMIUM = Path("/usr/bin/chromium")


def html_of(view: RunView) -> str:
    return to_html(page(view, 50, 100))


def bare(html: str) -> str:
    """As GitHub shows it: no styles, classes or other attributes of ours, no drawings but for their words."""
    html = re.sub(r"</?(svg|g|path|text)( [^<>]*)?>", "", html)
    return re.sub(r"<(\w+)( open)?( [^<>]*?)?>", lambda match: f"<{match[1]}{match[2] or ''}>", html)


def words(made: Page) -> Iterator[str]:
    """All texts of a page in their order, but those of charts."""
    yield from (made.name, f"{made.symbol} {made.state}", made.where, made.elapsed, made.detail)
    yield made.progress.text if made.progress else ""
    if made.failure is not None:
        yield from (made.failure.what, made.failure.why, made.failure.todo, *made.failure.lines)
    for chart in made.charts[:1]:
        yield from (chart.title, chart.caption, chart.warning)
    for figure in made.figures:
        yield from (figure.label, figure.value, figure.note)
    for problem in made.problems:
        yield from (problem.title, problem.count, problem.text, problem.fix, *problem.differences)
    yield from (chart.title for chart in made.charts[1:])
    yield from (chart.caption for chart in made.charts[1:])
    for section in made.sections:
        yield from (section.title, section.summary)
        yield from (text for fact in section.facts for text in (fact.label, fact.mark, *fact.lines, fact.code))
        yield from section.columns if section.rows else ()
        yield from (cell for row in section.rows for cell in row.cells)
        for item in section.items:
            yield from item.cells
            yield from (text for fact in item.facts for text in (fact.label, *fact.lines, fact.code))
        yield from section.notes
    yield made.footer


@pytest.mark.parametrize("name", recorded.RUNS)
def test_all_words_are_there_in_their_order_and_no_others_of_its_own(tmp_path: Path, name: str) -> None:
    made = page(recorded.RUNS[name](tmp_path).view(), 50, 100)
    text = " ".join(Parsed(to_html(made).replace("<wbr>", "")).text.replace("`", "").split())
    at = 0
    for word in words(made):
        word = " ".join(word.replace("`", "").split())
        assert word in text[at:], word
        at = text.index(word, at) + len(word)
    assert to_html(made) == to_html(made)


@pytest.mark.parametrize("name", recorded.RUNS)
def test_bare_of_styles_it_still_says_everything(tmp_path: Path, name: str) -> None:
    html = html_of(recorded.RUNS[name](tmp_path).view())
    stripped = bare(html)
    assert "style=" not in stripped and "<svg" not in stripped
    assert Parsed(stripped).text.replace(" ", "") == Parsed(html).text.replace(" ", "")
    allowed = {"div", "span", "b", "br", "code", "pre", "details", "summary", "table", "thead", "tbody", "tr", "th"}
    assert set(Parsed(stripped).tags) <= {*allowed, "td", "wbr"}


def test_bare_of_styles_the_head_reads_well(tmp_path: Path) -> None:
    text = Parsed(bare(html_of(recorded.running(tmp_path).view()))).text
    assert text.startswith("text-classifier ● training · 1 rank on XLA:CPU · 1 min 00 s loss 2.3 → 0.03")
    assert "Steps 440 Step time 111 ms median Compiles 8 22 % of the time Recompiles ! 5 and 1 expected" in text


def test_a_failure_is_marked_once(tmp_path: Path) -> None:
    text = Parsed(html_of(recorded.failed(tmp_path).view())).text
    assert text.count("✗ failed") == 1 and text.index("✗ failed") < text.index("Rank 1 failed")


@pytest.mark.parametrize("name", recorded.RUNS)
def test_there_is_no_script_no_asset_and_no_id(tmp_path: Path, name: str) -> None:
    html = html_of(recorded.RUNS[name](tmp_path).view())
    parsed = Parsed(html)
    assert not {"script", "style", "link", "img", "iframe", "object", "form", "h1", "h2", "h3", "h4"} & set(parsed.tags)
    assert not {"id", "src", "href", "onclick"} & {name for name, _value in parsed.attributes}
    assert "url(" not in html and "http" not in html


@pytest.mark.parametrize("name", recorded.RUNS)
def test_tables_have_their_headings_and_headings_their_rows(tmp_path: Path, name: str) -> None:
    html = html_of(recorded.RUNS[name](tmp_path).view())
    assert re.search(r"<th [^>]*></th>|<thead[^>]*></thead>|<tbody[^>]*></tbody>", html) is None
    assert html.count('role="listitem"') >= 4 and html.count('role="list"') == 1


def test_a_section_without_a_heading_has_no_empty_one() -> None:
    made = Section("values", "Values", "", columns=("value", ""), rows=(SectionRow(("a", "b")),))
    assert re.findall(r"<th [^>]*>([^<]*)", to_html(bare_page(sections=(made,)))) == ["value"]


def bare_page(**fields: Any) -> Page:
    known: dict[str, Any] = {
        "v": 2, "id": "x", "name": "x", "live": False, "background": False, "state": "done", "symbol": "✓",
        "tone": "ok", "where": "", "detail": "", "elapsed": "", "progress": None, "failure": None, "charts": (),
        "compiled_at": (), "figures": (), "problems": (), "sections": (), "footer": "",
    }  # fmt: skip
    return Page(**{**known, **fields})


def test_backticks_are_code_and_only_in_pairs() -> None:
    facts = (Fact("Fix", ("Use `torch.where`, not `if`.", "A ` alone")),)
    text = to_html(bare_page(sections=(Section("a", "A", "", facts=facts),)))
    assert re.findall(r"<code[^>]*>([^<]*)</code>", text) == ["torch.where", "if"] and "A ` alone" in text


def test_long_words_may_break_at_their_joints_only() -> None:
    assert flow("a short word") == "a short word"
    assert flow("In /home/me/projects/training/run.py") == (
        "In /<wbr>home/<wbr>me/<wbr>projects/<wbr>training/<wbr>run.<wbr>py"
    )
    assert flow("x" * 60) == "x" * 60 and flow("<" * 30) == "&lt;" * 30


# -- what people write stays text ------------------------------------------------------------------------------------


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
@pytest.mark.parametrize("place", PLACES)
def test_what_a_record_holds_stays_text(tmp_path: Path, place: str, evil: str) -> None:
    same_structure(
        started(tmp_path / "a", PLACES[place](evil)).view(),
        started(tmp_path / "b", PLACES[place](harmless(evil))).view(),
    )


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_run_json_holds_stays_text(tmp_path: Path, evil: str) -> None:
    same_structure(told_in_run_json(tmp_path, evil, "a"), told_in_run_json(tmp_path, harmless(evil), "b"))


def same_structure(evil: RunView, other: RunView) -> None:
    html = html_of(evil)
    found, expected = Parsed(html), Parsed(html_of(other))
    assert [tag for tag in found.tags if tag != "wbr"] == [tag for tag in expected.tags if tag != "wbr"]
    assert [name for name, _value in found.attributes] == [name for name, _value in expected.attributes]
    assert "<script" not in html and "</style" not in html and "\x1b" not in html
    assert html.encode("utf-8")


# -- how much --------------------------------------------------------------------------------------------------------


def test_a_huge_run_is_rendered_at_once(tmp_path: Path) -> None:
    """20,000 ranks and a million points froze pages for seconds."""
    view = recorded.running(tmp_path).view()
    rank, points = view.ranks[0], view.values[0].points
    ranks = tuple(dataclasses.replace(rank, rank=number) for number in range(20_000))
    values = tuple(dataclasses.replace(one, points=points * 5_000) for one in view.values[:1])
    huge = dataclasses.replace(view, ranks=ranks, values=values, compile_log=view.compile_log * 2_000)
    assert sum(len(one.points) for one in huge.values) > 500_000
    usual, work = recorded.calls(lambda: html_of(view)), recorded.calls(lambda: html_of(huge))
    assert work < 100 * usual, (work, usual)
    html = html_of(huge)
    assert len(html) < 200_000 and html.count("<tr") < 1_000


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    html = html_of(recorded.long_run(tmp_path).view())
    assert len(html.encode()) < 200_000 and "950 older compiles are in the run folder only." in html
    assert "<details open" not in html


# -- colours ---------------------------------------------------------------------------------------------------------


def luminance(colour: tuple[float, ...]) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else float(((part + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(part / 255) for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def mixed(one: tuple[float, ...], other: tuple[float, ...], share: float) -> tuple[float, ...]:
    return tuple(share * a + (1 - share) * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("tone", TONES)
@pytest.mark.parametrize(("paper", "ink"), [((255, 255, 255), (33, 33, 33)), ((17, 17, 17), (224, 224, 224))])
def test_each_tone_can_be_read_in_both_themes(tone: str, paper: tuple[int, ...], ink: tuple[int, ...]) -> None:
    """The contrast that WCAG asks for: letters on the paper and on a pill, and lines."""
    colour = tuple(int(TONES[tone][at : at + 2], 16) for at in (1, 3, 5))
    letters = mixed(colour, ink, 0.64) if tone else ink
    pill = mixed(colour, paper, 0x24 / 255)
    assert contrast(letters, paper) >= 4.5 and contrast(letters, pill) >= 4.5
    assert contrast(colour, paper) >= 3


# -- in a browser ----------------------------------------------------------------------------------------------------

THEMES = {"light": "background:#fff;color:#212121", "dark": "background:#111;color:#e0e0e0"}
BROKEN_WORDS = """() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    for (const word of node.data.matchAll(/\\S+/g)) {
      if (word[0].length > 24 || node.parentElement.closest('pre')) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
      if (tops.size > 1 && !/[-\\/]/.test(word[0])) found.push(word[0]);
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.browser
@pytest.mark.process
@pytest.mark.parametrize("name", recorded.RUNS)
def test_it_fits_narrow_places_and_is_reached_by_keyboard(tmp_path: Path, browser: Any, name: str) -> None:
    html = html_of(recorded.RUNS[name](tmp_path).view())
    sheet = browser.new_page(viewport={"width": 600, "height": 800})
    sheet.set_content(f'<body style="margin:8px;font:14px sans-serif;{THEMES["dark"]}">{html}</body>')
    sheet.keyboard.press("Tab")
    sheet.keyboard.press("Enter")
    assert sheet.locator("details[open]").count() == 1
    sheet.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for width in (600, 300):
        sheet.set_viewport_size({"width": width, "height": 800})
        assert sheet.evaluate("document.documentElement.scrollWidth") <= width
        assert sheet.evaluate(BROKEN_WORDS) == []
    sheet.close()
