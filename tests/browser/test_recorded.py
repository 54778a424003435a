"""Runs of every kind, opened from the panel's list and from a saved notebook: nothing breaks, nothing is too wide, and
axe finds no serious violation, light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import START, Notebook, Server, serious, write_notebook
from tests.panel import recorded
from tpu_magics.panel.bundle import to_bundle
from tpu_magics.panel.portable import SAVED, record
from tpu_magics.panel.protocol import MIME_TYPE

pytestmark = pytest.mark.browser
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
    run.locator("button").click()
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


@pytest.mark.parametrize("theme", THEMES)
def test_every_kind_of_run_is_shown_without_a_serious_violation(server: Server, page: Any, theme: str) -> None:
    it = opened(server, page, f"kinds-{theme}", recorded.RUNS, theme)
    found = []
    for run in it.section("runs").locator("li[data-run]").all():
        open_run(it, run)
        if it.rows.count():
            it.rows.first.get_by_role("button").first.click()
        found += [f"{run.inner_text()}: {each}" for each in serious(page, "#tpu-magics-panel, .tpu-StatusItem")]
        assert too_wide(it) == [], run.inner_text()
    assert not found, "\n".join(found)


def test_the_panel_fits_a_window_of_600_pixels(server: Server, page: Any) -> None:
    it = opened(server, page, "narrow", {"done": recorded.done})
    it.command("application:toggle-left-area")
    page.set_viewport_size({"width": 600, "height": 800})
    open_run(it, it.section("runs").locator("li[data-run]").first)
    it.rows.first.get_by_role("button").first.click()
    assert too_wide(it) == []
    row, box = it.rows.first.bounding_box(), it.panel.bounding_box()
    assert row and row["height"] < 90, "a column is squeezed"
    assert box and box["width"] > 150 and box["x"] + box["width"] <= 600
    expect(it.status).to_be_visible()


def test_ten_thousand_compiles_in_a_run_folder_are_opened(server: Server, page: Any) -> None:
    it = opened(server, page, "long", {"long": lambda root: recorded.long_run(root, 100_000, 10_000)})
    open_run(it, it.section("runs").locator("li[data-run]").first)
    expect(it.section("compiles")).to_contain_text("10,000")
    expect(it.section("compiles")).to_contain_text("in the run folder only")
    assert it.rows.count() >= 50


def test_the_comparison_of_two_runs_is_shown(server: Server, page: Any) -> None:
    it = opened(server, page, "compared", {"done": recorded.done, "failed": recorded.failed})
    for box in it.section("runs").get_by_role("checkbox").all():
        box.check()
    it.panel.get_by_role("button", name="Compare the two chosen").click()
    table = it.section("compared").get_by_role("table")
    expect(table).to_contain_text("text-classifier")
    expect(table).to_contain_text("rehearsal-of-2")


# -- saved notebooks ---------------------------------------------------------------------------------------------------


def saved(server: Server, page: Any, name: str, bundle: dict[str, Any]) -> Notebook:
    """A notebook that has this output, and gets no kernel."""
    path = f"{name}/it.ipynb"
    write_notebook(server.folder / path, "%%tpu_train", outputs=bundle, kernel="a kernel that is not here")
    it = Notebook(server, page, path)
    it.refuse_kernel()
    return it


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_a_saved_run_opens_without_a_kernel(tmp_path: Any, server: Server, page: Any, kind: str) -> None:
    view = recorded.RUNS[kind](tmp_path).view()
    it = saved(server, page, f"saved-{kind}", to_bundle(view))
    output = it.shown.locator(".tpu-Output")
    expect(output).to_contain_text(view.name)
    expect(output.locator(".tpu-Compiles tbody tr[data-key]")).to_have_count(view.compiles or 0)
    row = output.locator(".tpu-Compiles tbody tr[data-key]").first
    row.get_by_role("button").first.click()
    expect(output).to_contain_text("What to change" if view.recompiles else "Inputs")
    expect(it.shown.locator(".jp-OutputArea-output")).to_have_count(1)
    expect(it.shown.locator(".jp-RenderedHTML")).to_have_count(0)
    assert not serious(page, ".tpu-Output")


def test_ten_thousand_compiles_in_a_saved_notebook_do_not_break_it(tmp_path: Any, server: Server, page: Any) -> None:
    view = recorded.long_run(tmp_path, 1_000, 200).view()
    whole = record(view, SAVED)
    [entry, *_] = whole["view"]["compile_log"]
    whole["view"]["compile_log"] = [entry | {"key": f"{n}"} for n in range(10_000)]
    whole["view"]["compiles"] = 10_000
    it = saved(server, page, "saved-10000", {MIME_TYPE: whole, "text/plain": "x"})
    rows = it.shown.locator(".tpu-Output .tpu-Compiles tbody tr[data-key]")
    expect(rows.nth(50)).to_be_attached()
    it.shown.get_by_role("button", name="more (of").click()
    expect(rows.nth(150)).to_be_attached()


def test_html_in_a_record_is_text(tmp_path: Any, server: Server, page: Any) -> None:
    whole = record(recorded.done(tmp_path).view(), SAVED)

    def spoilt(value: Any, where: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoilt(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [spoilt(one, where) for one in value]
        return f"{value}{HOSTILE}" if isinstance(value, str) and value not in ("nan", "inf", "-inf") else value

    it = saved(server, page, "saved-html", {MIME_TYPE: spoilt(whole), "text/plain": "x"})
    expect(it.shown.locator(".tpu-Output")).to_contain_text(HOSTILE)
    assert page.evaluate("window.hacked === undefined")
    expect(it.shown.locator(".tpu-Output img, .tpu-Output script")).to_have_count(0)


@pytest.mark.parametrize("broken", ["version", "missing", "type"])
def test_a_record_that_cannot_be_read_says_so(tmp_path: Any, server: Server, page: Any, broken: str) -> None:
    whole = record(recorded.done(tmp_path).view(), SAVED)
    if broken == "version":
        whole["v"] = 2
    elif broken == "missing":
        del whole["view"]["compile_log"]
    else:
        whole["view"]["compile_log"] = "none"
    it = saved(server, page, f"saved-{broken}", {MIME_TYPE: whole, "text/plain": "x"})
    unreadable = it.shown.locator(".tpu-Unreadable")
    expect(unreadable).to_contain_text("another version of tpu_magics" if broken == "version" else "cannot be read")
