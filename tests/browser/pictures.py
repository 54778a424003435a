"""`python -m tests.browser.pictures`: the pictures of the JupyterLab extension in docs/pictures, made anew.

What lives here: what stands on each of them. What does not: any assertion but that it came to be; whether a picture is
good is seen by looking at it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.browser.installed import ROOT, install, make_sdist, make_wheel
from tests.browser.jupyter import START, Notebook, Server, chromium, copied, running_server, write_notebook
from tests.panel import recorded
from tpu_magics.panel.run_json import to_bundle

PICTURES = ROOT / "docs" / "pictures"
TUTORIAL, TRAINS = "03_recompiles.ipynb", 12  # and its cell that recompiles


def live(server: Server, page: Any) -> None:
    """While it trains: the status bar, the panel, and the reason at the line."""
    it = Notebook(server, page, copied(server, TUTORIAL))
    _quiet(it)
    _until(it, TRAINS)
    it.show_panel()
    expect(it.rows.nth(4)).to_be_visible(timeout=START)
    it.rows.first.get_by_role("button", name="line").click()
    _badge(it).hover()
    expect(page.get_by_role("tooltip")).to_be_visible()
    page.screenshot(path=PICTURES / "lab-live-light.png")


def done(server: Server, page: Any) -> None:
    """The same run when it is over, dark: a compile unfolded, its line marked."""
    it = Notebook(server, page, copied(server, TUTORIAL, "ended"))
    _quiet(it, dark=True)
    _until(it, TRAINS)
    expect(it.cell(TRAINS).locator(".tpu-Output")).to_be_visible(timeout=2 * START)
    it.show_panel()
    it.rows.first.get_by_role("button").first.click()
    it.rows.first.get_by_role("button", name="line").click()
    it.rows.first.scroll_into_view_if_needed()
    page.mouse.move(700, 400)
    page.screenshot(path=PICTURES / "lab-done-dark.png")


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
        folders = [Path(place, name) for name in ("sdist", "wheel", "env")]
        for folder in folders:
            folder.mkdir()
        sdist, wheel, env = folders
        environment = install(make_wheel(make_sdist(sdist), wheel), env)
        with chromium() as browser, running_server(environment) as server:
            for picture in (live, done, saved):
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                picture(server, page)
                page.close()


if __name__ == "__main__":
    main()
