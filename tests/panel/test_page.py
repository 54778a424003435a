"""The bundle that stays in a saved notebook: whole, bare as GitHub shows it, and in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.parsed import Parsed
from tests.panel.recorded import CREATED, Recorded, began, myself, recompile
from tpu_magics.panel.page import to_html, to_text
from tpu_magics.panel.sections import sections
from tpu_magics.runs.events import End, Frame, Input, Site, Value, Warned

CHROMIUM = Path("/usr/bin/chromium")


def bare(html: str) -> str:
    """As GitHub shows it: no styles, classes or other attributes of ours, no drawings."""
    html = re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    return re.sub(r"<(\w+)( open)?( [^<>]*?)?>", lambda match: f"<{match[1]}{match[2] or ''}>", html)


@pytest.mark.parametrize("name", recorded.RUNS)
def test_the_page_holds_every_part_in_its_order(tmp_path: Path, name: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    html = to_html(view)
    places = [html.index(part) for part in sections(view).values() if part]
    assert places == sorted(places)
    Parsed(html)
    assert html == to_html(view) and to_text(view) == to_text(view)


def test_the_compiles_stand_behind_their_summary(tmp_path: Path) -> None:
    text = Parsed(to_html(recorded.running(tmp_path).view())).text
    order = (
        "8 compiles, 6 recompiles",
        "Each compile, newest first (8)",
        "#5 In [12], line 14",
        "#0 In [12], line 14",
        "Device-to-host reads",
    )
    places = [text.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize("name", recorded.RUNS)
def test_bare_of_styles_it_still_says_everything(tmp_path: Path, name: str) -> None:
    html = to_html(recorded.RUNS[name](tmp_path).view())
    stripped = bare(html)
    assert "style=" not in stripped and "<svg" not in stripped
    assert Parsed(stripped).text == Parsed(html).text
    allowed = {"div", "p", "span", "b", "br", "code", "pre", "details", "summary", "table", "thead", "tbody", "tr"}
    assert set(Parsed(stripped).tags) <= {*allowed, "th", "td"}


def test_the_shape_of_the_loss_survives_without_drawings(tmp_path: Path) -> None:
    text = Parsed(bare(to_html(recorded.running(tmp_path).view()))).text
    [shape] = re.findall(r"loss ([▁-█]{20}) 2.3 → 0.03", text)
    assert (shape[0], shape[-1]) == ("█", "▁")


def test_the_text_is_aligned_and_at_most_100_columns_wide(tmp_path: Path) -> None:
    for make in recorded.RUNS.values():
        text = to_text(make(tmp_path).view())
        assert max(map(len, text.splitlines())) <= 100
        assert "<" not in text


def test_the_text_of_a_failed_run(tmp_path: Path) -> None:
    lines = to_text(recorded.failed(tmp_path).view()).splitlines()
    assert lines[0] == "rehearsal-of-2: ✗ failed"
    assert [line for line in lines if line.startswith(("Elapsed", "Steps ", "Compiles ", "Recompiles   !"))] == [
        "Elapsed      11 s",
        "Steps        30 (of at most 500)",
        "Compiles     2",
        "Recompiles   ! 1",
        "Recompiles   ! input-shape: #1 at In [12], line 14: The shape of an input changed: input_ids now",
    ]
    assert any(line.startswith("What happened  ✗ failed: Rank 1 failed: ValueError: Expected input") for line in lines)
    assert "    outputs = model(**batch)" in lines
    assert any(line.startswith("#1       In [12], line 14  1.21 s  input-shape") for line in lines)
    assert any(re.match("loss  █[▁-█]{23}  2.3 → 0.06", line) for line in lines)
    assert "HBM          n/a on XLA:CPU" in lines


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    view = recorded.long_run(tmp_path).view()
    html, text = to_html(view), to_text(view)
    assert len(html.encode()) < 300_000 and len(text.encode()) < 20_000
    assert "Each compile, newest first (the newest 50 of 1,000)" in html
    assert "980 older ones are not shown." in text
    assert "<details open" not in html  # fifty rows wait until they are asked for


def test_long_texts_and_many_of_them_stay_small(tmp_path: Path) -> None:
    """Whatever a person's program puts into the records."""
    long = "<&long> " * 20_000
    again = long[:8_000]  # what stands in each of 60 compiles: were it shown in full, they alone would be too large
    site = Site(0, again, 3, again, again)
    parts: dict[str, Any] = {"text": again, "fix": again, "difference": (again,) * 50, "site": site, "graph": again}
    run = Recorded(tmp_path, **myself()).write(*began(CREATED + 1))
    evil = recompile(CREATED + 2, 1, inputs=tuple(Input(again, tuple(range(50)), again) for _ in range(20)), **parts)
    run.write_many(evil for _ in range(60))
    run.write_many(Value(CREATED + 2, 0, f"{number} {long}"[:200], long[:200], 1) for number in range(64))
    run.write_many(Warned(CREATED + 2, 0, "x", f"{number} {long}") for number in range(10))
    run.write(
        End(CREATED + 3, 0, "failed", error_type=long, error_text=long, frames=(Frame(long, 1, long, long),) * 50)
    )
    view = run.view()
    html = to_html(view)
    assert len(html.encode()) < 350_000 and re.search(r"\(the newest \d+ of 60\)", html)
    assert max(map(len, to_text(view).splitlines())) <= 100


# -- in a browser ----------------------------------------------------------------------------------------------------

THEMES = {"light": "background:#fff;color:#212121", "dark": "background:#111;color:#e0e0e0"}


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
@pytest.mark.parametrize("name", recorded.RUNS)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.process
def test_it_fits_600_pixels_and_is_reached_by_keyboard(tmp_path: Path, browser: Any, name: str, theme: str) -> None:
    html = to_html(recorded.RUNS[name](tmp_path).view())
    page = browser.new_page(viewport={"width": 600, "height": 800})
    page.set_content(f'<body style="margin:8px;font:13px sans-serif;{THEMES[theme]}">{html}</body>')
    assert page.evaluate("document.documentElement.scrollWidth") <= 600
    rows = page.locator("details details")
    if rows.count():
        page.keyboard.press("Tab")
        while not page.evaluate("document.activeElement.closest('details details')"):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert rows.first.get_attribute("open") is not None
        assert page.evaluate("document.documentElement.scrollWidth") <= 600
    page.close()
