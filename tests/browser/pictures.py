"""`python -m tests.browser.pictures`: makes the pictures in docs/pictures. Look at them: nothing here can judge them.

The runs, findings and preflights on them are real ones, of the tutorials; the finished run in a saved notebook is a
recorded one.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import expect

from tests.browser.installed import ROOT, build, install
from tests.browser.jupyter import START, Notebook, Server, chromium, copied, running_server, write_notebook
from tests.panel import recorded
from tests.panel.test_html import THEMES
from tpu_magics.panel.html import to_html
from tpu_magics.panel.page_of_run import page as page_of
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.panel.run_view import RunView

PICTURES = ROOT / "docs" / "pictures"
QUICKSTART = "01_quickstart.ipynb"
TUTORIAL, TRAINS = "03_recompiles.ipynb", 12  # and its cell that recompiles
LIMIT = "%tpu_train training_function new_model() --run-name limited --max-recompiles 2"
WIDE, NARROW = 1000, 480  # pixels
# Name -> the state of the run, theme, width: the panel where there is no extension, as on Colab.
PANELS = {
    "panel-running-light-wide": ("running", "light", WIDE),
    "panel-running-dark-wide": ("running", "dark", WIDE),
    "panel-running-light-narrow": ("running", "light", NARROW),
    "panel-done-dark-wide": ("done", "dark", WIDE),
    "panel-done-light-narrow": ("done", "light", NARROW),
    "panel-failed-light-wide": ("failed", "light", WIDE),
    "panel-failed-dark-narrow": ("failed", "dark", NARROW),
}
# Name -> tutorial, its cell, what of the output is shown.
OUTPUTS = {
    "check-light": ("05_rules.ipynb", 7, ".jp-RenderedHTMLCommon"),
    "padding-light": ("05_rules.ipynb", 18, ".jp-RenderedHTMLCommon"),
    "preflight-light": ("05_preflight.ipynb", 17, ".tpu-magics-preflight"),
    "profile-light": ("05_preflight.ipynb", 12, ".tpu-magics-profile"),
}


def live(server: Server, page: Any) -> RunView:
    """While it trains: the status bar, the panel, and the reason at the line. Returns the run as it is then."""
    it = Notebook(server, page, copied(server, TUTORIAL))
    _quiet(it)
    _until(it, TRAINS)
    it.show_panel()
    _wider(it, 420)
    it.unfold("compiles")
    expect(it.rows.nth(4)).to_be_visible(timeout=START)
    it.panel.get_by_role("list", name="Problems").get_by_role("button", name="line").first.click()
    _badge(it).hover()
    expect(page.get_by_role("tooltip")).to_be_visible()
    page.screenshot(path=PICTURES / "lab-live-light.png")
    return it.record()


def done(server: Server, page: Any) -> RunView:
    """The same run when it is over, dark: a compile unfolded, its line marked. Returns the run."""
    it = Notebook(server, page, copied(server, TUTORIAL, "ended"))
    _quiet(it, dark=True)
    _until(it, TRAINS)
    expect(it.cell(TRAINS).locator(".tpu-State")).to_contain_text("done", timeout=4 * START)
    it.show_panel()
    _wider(it, 480)
    it.unfold("compiles")
    it.rows.first.get_by_role("button").first.click()
    it.rows.first.get_by_role("button", name="line").click()
    it.rows.first.scroll_into_view_if_needed()
    page.mouse.move(700, 400)
    page.screenshot(path=PICTURES / "lab-done-dark.png")
    return it.record()


def failed(server: Server, page: Any) -> RunView:
    """A run of the tutorial's function that its limit of recompiles stopped."""
    cells = nbformat.read(ROOT / "notebooks" / TUTORIAL, as_version=4).cells[: TRAINS + 1]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    write_notebook(server.folder / "limited" / "it.ipynb", *code[:-1], code[-1].partition("\n")[2], LIMIT)
    it = Notebook(server, page, "limited/it.ipynb")
    _quiet(it)
    it.await_kernel()
    it.run_all()
    output = it.cell(len(code)).locator(".tpu-Run")
    expect(output).to_contain_text("failed", timeout=2 * START)
    _picture(output, "lab-failed-light")
    return it.record()


def healthy(server: Server, page: Any) -> None:
    """The quickstart's run: nothing needs action."""
    it = Notebook(server, page, copied(server, QUICKSTART))
    _quiet(it)
    _until(it, 12)
    expect(it.cell(12).locator(".tpu-State")).to_contain_text("done", timeout=2 * START)
    it.show_panel()
    page.evaluate("window.jupyterapp.shell.currentWidget.content.scrollToItem(12, 'center')")
    page.wait_for_timeout(1000)
    page.screenshot(path=PICTURES / "lab-healthy-light.png")
    page.set_viewport_size({"width": 600, "height": 900})
    it.command("apputils:change-theme", theme="JupyterLab Dark")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    page.wait_for_timeout(1000)
    page.screenshot(path=PICTURES / "lab-600-dark.png")


def ranks(server: Server, page: Any) -> None:
    """The tutorial's rehearsal of eight ranks."""
    it = Notebook(server, page, copied(server, "04_eight_ranks.ipynb"))
    _quiet(it)
    _until(it, 6)
    output = it.cell(6).locator(".tpu-Run")
    expect(output.locator(".tpu-State")).to_contain_text("done", timeout=4 * START)
    it.unfold("ranks", output)
    _picture(output, "lab-ranks-light")


def compared(server: Server, page: Any) -> None:
    """Two runs of the tutorial about recompiles."""
    it = Notebook(server, page, copied(server, TUTORIAL, "compared"))
    _quiet(it)
    _until(it, 18)
    expect(it.cell(18).locator(".tpu-State")).to_contain_text("done", timeout=3 * START)
    it.show_panel()
    _wider(it, 480)
    boxes = it.section("runs").get_by_role("checkbox")
    expect(boxes).to_have_count(2, timeout=START)
    for box in boxes.all():
        box.check()
    it.panel.get_by_role("button", name="Compare selected").click()
    section = it.section("compared")
    expect(section.locator("canvas")).to_be_visible()
    section.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.screenshot(path=PICTURES / "lab-compare-light.png")


def panel(page: Any, name: str, view: RunView) -> None:
    """The panel of a run as a page that needs no extension."""
    _state, theme, width = PANELS[name]
    page.set_viewport_size({"width": width, "height": 800})
    page.set_content(f'<body style="margin:8px;font:13px sans-serif;{THEMES[theme]}">{to_html(page_of(view))}</body>')
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def outputs(server: Server, page: Any, tutorial: str) -> None:
    """What cells of a tutorial show."""
    page.set_viewport_size({"width": 1100, "height": 1300})
    wanted = {name: row for name, row in OUTPUTS.items() if row[0] == tutorial}
    it = Notebook(server, page, copied(server, tutorial))
    _quiet(it)
    last = max(cell for _, cell, _ in wanted.values())
    _until(it, last)
    expect(it.cell(last).locator(".jp-InputArea-prompt")).to_have_text(re.compile(r"\d"), timeout=4 * START)
    for name, (_, cell, shown) in wanted.items():
        it.page.evaluate("cell => window.jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'start')", cell)
        output = it.cell(cell).locator(shown).first
        expect(output).to_be_visible()
        page.wait_for_timeout(1000)  # until the notebook has stopped to scroll
        output.screenshot(path=PICTURES / f"{name}.png")


def saved(server: Server, page: Any) -> None:
    """A finished run in a saved notebook without a kernel, in a narrow window."""
    page.set_viewport_size({"width": 760, "height": 900})
    view = recorded.done(server.folder / "saved-runs").view()
    write_notebook(server.folder / "saved" / "it.ipynb", "%%tpu_train model", outputs=[to_bundle(view)], kernel="none")
    it = Notebook(server, page, "saved/it.ipynb")
    it.refuse_kernel()
    _quiet(it)
    expect(it.shown.locator(".tpu-Output")).to_contain_text(view.name)
    page.screenshot(path=PICTURES / "lab-saved-light.png")


def _quiet(it: Notebook, dark: bool = False) -> None:
    """Without the list of files, in a theme, without JupyterLab's splash, which a change of the theme shows again."""
    expect(it.page.locator("#jupyterlab-splash")).to_have_count(0, timeout=START)
    it.command("application:toggle-left-area")
    it.command("apputils:change-theme", theme="JupyterLab Dark" if dark else "JupyterLab Light")
    expect(it.page.locator("body")).to_have_attribute("data-jp-theme-light", str(not dark).lower())
    expect(it.page.locator("#jupyterlab-splash")).to_have_count(0)


def _wider(it: Notebook, width: int) -> None:
    """The panel as wide as this."""
    box = it.panel.bounding_box()
    assert box
    mouse = it.page.mouse
    mouse.move(box["x"] - 2, 400)
    mouse.down()
    mouse.move(box["x"] - 2 - (width - box["width"]), 400, steps=5)
    mouse.up()


def _picture(output: Any, name: str) -> None:
    """Of one run alone, once its charts are drawn."""
    output.page.set_viewport_size({"width": 1400, "height": 1600})  # all of it is in sight
    output.scroll_into_view_if_needed()
    expect(output.locator("canvas").first).to_be_visible()
    output.page.wait_for_timeout(500)
    output.screenshot(path=PICTURES / f"{name}.png")


def _until(it: Notebook, last: int) -> None:
    """Run the cells up to this one."""
    it.await_kernel()
    it.page.evaluate("last => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = last; }", last)
    it.command("notebook:run-all-above")
    it.command("notebook:run-cell")


def _badge(it: Notebook) -> Any:
    return it.cell(TRAINS).locator("button.jp-tpu-badge:visible").filter(has_text="recompiled").first


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        environment = install(build(Path(place, "built")), Path(place, "env"))
        with chromium() as browser, running_server(environment) as server:

            def on_a_page(picture: Callable[..., Any], *arguments: Any) -> Any:
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                made = picture(server, page, *arguments)
                page.close()
                return made

            views = {"running": on_a_page(live), "done": on_a_page(done), "failed": on_a_page(failed)}
            for other in (healthy, ranks, compared, saved):
                on_a_page(other)
            for tutorial in sorted({row[0] for row in OUTPUTS.values()}):
                on_a_page(outputs, tutorial)
            page = browser.new_page()
            for name, (state, _, _) in PANELS.items():
                panel(page, name, views[state])


if __name__ == "__main__":
    main()
