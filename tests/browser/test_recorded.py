"""Runs of every kind, opened from the panel's list and from a saved notebook: nothing breaks, nothing is too wide, and
axe finds no serious violation, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import START, Notebook, Server, opened_page, serious, write_notebook
from tests.panel import recorded
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import SAVED, record, to_bundle

pytestmark = [pytest.mark.browser, pytest.mark.process]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
HOSTILE = '</style><script>window.hacked = 1</script><img src="x" onerror="window.hacked = 1"><b>'


def opened(server: Server, page: Any, name: str, runs: dict[str, Any], theme: str = "light") -> Notebook:
    """A notebook whose kernel has not trained, in a folder with these runs; the panel shows their list."""
    for make in runs.values():
        make(server.folder / name / ".tpu_runs")
    write_notebook(server.folder / name / "it.ipynb", "%load_ext tpu_magics")
    it = Notebook(server, page, f"{name}/it.ipynb")
    it.command("apputils:change-theme", theme=THEMES[theme])
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "light").lower())
    it.await_kernel()
    it.run_all()
    expect(it.status).to_be_visible(timeout=START)
    it.show_panel()
    expect(it.section("runs").locator("li[data-run]")).to_have_count(len(runs), timeout=START)
    return it


def open_run(it: Notebook, run: Any) -> None:
    run.get_by_role("button").click()
    expect(it.panel.locator(f'article[data-run="{run.get_attribute("data-run")}"]')).to_be_visible()


STICKING_OUT = """node => {
  const edge = node.getBoundingClientRect().left + node.clientWidth;
  const out = [...node.querySelectorAll('*')].filter(each => each.getBoundingClientRect().right > edge + 1);
  return node.scrollWidth > node.clientWidth ? out.map(each => each.outerHTML.slice(0, 200)) : [];
}"""


def too_wide(it: Notebook) -> list[str]:
    """What makes the panel scroll sideways."""
    found: list[str] = it.panel.evaluate(STICKING_OUT)
    return found


@pytest.fixture(scope="module")
def listed(server: Server, browser: Any) -> Iterator[Notebook]:
    with opened_page(browser) as page:
        yield opened(server, page, "kinds-light", recorded.RUNS)


UNFOLD = "node => node.querySelectorAll('h3 > button[aria-expanded=false]').forEach(head => head.click())"


def without_a_serious_violation(it: Notebook) -> None:
    found = []
    for run in it.section("runs").locator("li[data-run]").all():
        open_run(it, run)
        it.panel.evaluate(UNFOLD)
        if it.rows.count():
            it.rows.first.get_by_role("button").first.click()
        found += [f"{run.inner_text()}: {each}" for each in serious(it.page, "#tpu-magics-panel, .tpu-StatusItem")]
        assert too_wide(it) == [], run.inner_text()
    assert not found, "\n".join(found)


def test_every_kind_of_run_is_shown_without_a_serious_violation(listed: Notebook) -> None:
    without_a_serious_violation(listed)


@pytest.mark.long
def test_every_kind_of_run_is_shown_without_a_serious_violation_in_the_dark(server: Server, page: Any) -> None:
    without_a_serious_violation(opened(server, page, "kinds-dark", recorded.RUNS, "dark"))


def test_the_comparison_of_two_runs_is_shown(listed: Notebook) -> None:
    runs = listed.section("runs").locator("li[data-run]")
    for name in ("text-classifier", "rehearsal-of-2"):
        runs.filter(has_text=name).first.get_by_role("checkbox").check()
    listed.panel.get_by_role("button", name="Compare selected").click()
    compared = listed.section("compared")
    table = compared.get_by_role("table").first
    expect(table).to_contain_text("text-classifier")
    expect(table).to_contain_text("rehearsal-of-2")
    expect(compared.locator(".tpu-Chart canvas")).to_be_visible()
    expect(compared.locator("summary")).to_contain_text("equal")
    assert not serious(listed.page, "#tpu-magics-panel")


def test_the_panel_fits_a_window_of_600_pixels(listed: Notebook) -> None:
    it = listed
    it.command("application:toggle-left-area")
    it.page.set_viewport_size({"width": 600, "height": 800})
    runs = it.section("runs").locator("li[data-run]")
    open_run(it, runs.filter(has_text="text-classifier").filter(has_text="done").first)
    it.unfold("compiles")
    it.rows.first.get_by_role("button").first.click()
    assert too_wide(it) == []
    row, box = it.rows.first.bounding_box(), it.panel.bounding_box()
    assert row and row["height"] < 90, "a column is squeezed"
    assert box and box["width"] > 150 and box["x"] + box["width"] <= 600
    expect(it.status).to_be_visible()


def test_a_chart_is_pointed_at_zoomed_logarithmic_and_saved(listed: Notebook) -> None:
    it, page = listed, listed.page
    page.set_viewport_size({"width": 1500, "height": 900})
    open_run(
        it, it.section("runs").locator("li[data-run]").filter(has_text="text-classifier").filter(has_text="done").first
    )
    chart = it.panel.locator(".tpu-Run .tpu-Chart").first
    drawing, pointed = chart.locator("canvas"), chart.locator(".tpu-Chart-pointed")
    expect(drawing).to_be_visible()
    chart.locator(".u-over").hover()
    expect(pointed).to_contain_text("step")
    box = chart.locator(".u-over").bounding_box()
    assert box
    left, right, middle = box["x"] + 20, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    plot = chart.get_by_role("slider")
    plot.press("Home")
    expect(plot).to_have_attribute("aria-valuenow", "0")
    expect(plot).to_have_attribute("aria-valuetext", re.compile(r"^step \d: \d"))
    plot.press("ArrowRight")
    expect(plot).to_have_attribute("aria-valuenow", "1")

    picture = "node => node.toDataURL()"
    whole = drawing.evaluate(picture)
    page.mouse.move(left, middle)
    page.mouse.down()
    page.mouse.move(right, middle, steps=4)
    page.mouse.up()
    reset = chart.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    assert drawing.evaluate(picture) != whole
    page.mouse.dblclick(right, middle)
    expect(reset).to_have_count(0)

    chart.get_by_role("button", name="Log").click()
    expect(chart.get_by_role("button", name="Log")).to_have_attribute("aria-pressed", "true")
    with page.expect_download() as saved_picture:
        chart.get_by_role("button", name="PNG").click()
    assert saved_picture.value.suggested_filename == "text-classifier-loss.png"
    assert Path(saved_picture.value.path()).read_bytes().startswith(b"\x89PNG")
    chart.get_by_role("button", name="Log").click()

    page.mouse.move(5, 5)
    light = drawing.evaluate(picture)
    for theme in ("dark", "light"):
        it.command("apputils:change-theme", theme=THEMES[theme])
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "light").lower())
        page.wait_for_function(
            "([where, light, same]) => (document.querySelector(where).toDataURL() === light) === same",
            arg=[".tpu-Panel .tpu-Chart canvas", light, theme == "light"],
        )


@pytest.mark.long
def test_ten_thousand_compiles_in_a_run_folder_are_opened(server: Server, page: Any) -> None:
    it = opened(server, page, "long", {"long": lambda root: recorded.long_run(root, 100_000, 10_000)})
    open_run(it, it.section("runs").locator("li[data-run]").first)
    compiles = it.unfold("compiles")
    expect(compiles).to_contain_text("#9999")
    expect(it.panel).to_contain_text("rank-0.jsonl was read in part")  # so its counts are those of what was read
    expect(compiles).to_contain_text("in the run folder only")
    assert it.rows.count() >= 50


# -- saved notebooks ---------------------------------------------------------------------------------------------------


def saved(server: Server, page: Any, name: str, *bundles: dict[str, Any]) -> Notebook:
    """A notebook that has these outputs, and gets no kernel."""
    path = f"{name}/it.ipynb"
    write_notebook(server.folder / path, "%%tpu_train", outputs=bundles, kernel="a kernel that is not here")
    it = Notebook(server, page, path)
    it.refuse_kernel()
    return it


def bundle(whole: dict[str, Any]) -> dict[str, Any]:
    return {MIME_TYPE: whole, "text/plain": "x"}


def spoilt(value: Any, where: str = "") -> Any:
    """With HTML in all its texts."""
    if isinstance(value, dict):
        return {name: spoilt(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [spoilt(one, where) for one in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) and value not in ("nan", "inf", "-inf") else value


def test_saved_runs_open_without_a_kernel(tmp_path: Any, server: Server, page: Any) -> None:
    """Two that are good, one whose texts are HTML, two of which a part cannot be read, and one of another version."""
    views = [recorded.RUNS[kind](tmp_path / kind).view() for kind in ("done", "failed")]
    good = record(views[0], SAVED)
    newer, none = {**good, "v": good["v"] + 1}, {**good, "sections": "none"}
    missing = {name: each for name, each in good.items() if name != "sections"}
    odd = [bundle(each) for each in (spoilt(good), newer, missing, none)]
    it = saved(server, page, "saved", *map(to_bundle, views), *odd)
    expect(it.shown.locator(".jp-OutputArea-output")).to_have_count(6)
    for at, view in enumerate(views):
        output = it.output.nth(at)
        expect(output).to_contain_text(view.name)
        rows = it.unfold("compiles", output).locator("tbody tr[data-key]")
        expect(rows).to_have_count(view.compiles or 0)
        rows.first.get_by_role("button").first.click()
        expect(output.locator(".tpu-Unfolded")).to_contain_text("Inputs")
        output.locator(".tpu-Chart-plot").first.scroll_into_view_if_needed()
        expect(output.locator(".tpu-Chart canvas").first).to_be_visible()
    expect(it.shown.locator(".jp-RenderedHTML")).to_have_count(0)
    assert not serious(page, ".tpu-Output")
    expect(it.shown.locator(".tpu-Output").nth(2)).to_contain_text(HOSTILE)
    assert page.evaluate("window.hacked === undefined")
    expect(it.shown.locator(".tpu-Output img, .tpu-Output script")).to_have_count(0)
    expect(it.shown.locator(".tpu-Unreadable")).to_contain_text("another version of tpu_magics")
    for at in (4, 5):
        expect(it.output.nth(at)).to_contain_text("Not all of this run could be read: sections is not a list.")


@pytest.mark.long
def test_a_huge_record_in_a_saved_notebook_does_not_freeze_the_page(tmp_path: Any, server: Server, page: Any) -> None:
    """Of a foreign program: ours are smaller. 20,000 ranks, 10,000 compiles, a curve of a million points."""
    good = record(recorded.RUNS["done"](tmp_path).view(), SAVED)
    [compiles, *others] = good["sections"]
    [item, *_] = compiles["items"]
    row = {"cells": ["0", "done"], "tone": "", "site": None}
    huge = [
        {**good, "sections": [*others, {**compiles, "key": "ranks", "items": [], "rows": [row] * 20_000}]},
        {**good, "sections": [{**compiles, "items": [item | {"key": f"{n}"} for n in range(10_000)]}]},
        {**good, "charts": [{**good["charts"][0], "points": [[n, 1, 1, 1] for n in range(1_000_000)]}]},
    ]
    it = saved(server, page, "huge", *map(bundle, huge))
    expect(it.output).to_have_count(3)
    for at, (name, rows) in enumerate((("ranks", "tbody tr"), ("compiles", "tbody tr[data-key]"))):
        began = page.evaluate("performance.now()")
        shown = it.unfold(name, it.output.nth(at)).locator(rows)
        expect(shown).to_have_count(50)
        it.output.nth(at).get_by_role("button", name="more (of").click()
        expect(shown).to_have_count(100)
        assert page.evaluate("performance.now()") - began < 10_000
    for at in range(3):
        expect(it.output.nth(at)).to_contain_text("is cut: it has")
