"""A run that goes on: seen, stopped, and found again after a reload, a kernel's restart, in two tabs, and apart from
another notebook's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.cells import ENDLESS, GO, LOAD, SHORT, SYNC, WAITING, line_of
from tests.browser.jupyter import SOON, START, Notebook, serious

pytestmark = pytest.mark.browser
Opens = Callable[..., Notebook]
COLOUR = "node => getComputedStyle(node).color"


def trains(notebook: Notebook) -> None:
    """Run all; afterwards the run is seen in the panel and has compiled more than once."""
    notebook.await_kernel()
    notebook.run_all()
    expect(notebook.status).to_contain_text("steps/s", timeout=START)
    notebook.show_panel()
    expect(notebook.rows.nth(1)).to_be_visible(timeout=START)


def goes_on(notebook: Notebook) -> None:
    """The panel has a run that can be stopped, and tells of more steps than a moment ago."""
    expect(notebook.panel.get_by_role("button", name="Stop", exact=True)).to_be_visible(timeout=START)
    steps = notebook.panel.locator(".tpu-Figure", has_text="step").first.locator(".tpu-Figure-value")
    expect(steps).not_to_have_text(steps.inner_text())


def stops(notebook: Notebook) -> None:
    notebook.panel.get_by_role("button", name="Stop", exact=True).click()
    expect(notebook.state).to_contain_text("interrupted", timeout=START)


def test_a_live_run_is_seen_and_stopped_from_the_panel(notebook: Opens) -> None:
    it = notebook(LOAD, ENDLESS)
    trains(it)
    goes_on(it)
    recompiled = it.badges.filter(has_text="recompiled").first
    expect(recompiled).to_be_visible()
    recompiled.hover()
    tip = it.page.get_by_role("tooltip")
    expect(tip).to_contain_text("python-number")
    assert it.record().live
    stops(it)
    expect(it.status).to_contain_text("interrupted")
    view = it.record()
    assert view.state == "interrupted" and view.compiles and view.compiles > 1
    it.await_kernel()
    line = line_of(ENDLESS, SYNC)
    assert view.compile_log[0].compile.site.line == line
    it.rows.first.get_by_role("button", name=f"line {line}").click()
    expect(it.shown.locator(".jp-tpu-marked-line")).to_have_text(f"        {SYNC}")


def test_a_reload_in_the_middle_and_a_second_tab_show_the_same_run(notebook: Opens, page: Any) -> None:
    it = notebook(LOAD, ENDLESS)
    trains(it)
    page.reload()
    it.await_it()
    expect(it.status).to_contain_text("steps/s", timeout=START)
    if not it.panel.is_visible():
        it.show_panel()
    expect(it.rows.nth(1)).to_be_visible(timeout=START)
    goes_on(it)

    other = notebook(into=page.context.new_page())
    expect(other.status).to_contain_text("steps/s", timeout=START)
    other.show_panel()
    goes_on(other)
    goes_on(it)
    assert it.record().id == other.panel.locator("article[data-run]").get_attribute("data-run")
    stops(other)
    expect(it.state).to_contain_text("interrupted")


def test_the_status_bar_is_amber_from_the_first_recompile(notebook: Opens) -> None:
    it = notebook(LOAD, WAITING)
    it.await_kernel()
    it.run_all()
    expect(it.status).to_contain_text("0 recompiles", timeout=START)
    amber = it.status.locator(".tpu-Status-amber")
    expect(amber.filter(has_text="recompile")).to_have_count(0)
    plain = it.status.get_by_text("0 recompiles", exact=True).evaluate(COLOUR)
    (it.server.folder / it.path).with_name(GO).touch()
    recompiled = amber.filter(has_text="! 1 recompile")
    expect(recompiled).to_be_visible(timeout=SOON)
    assert recompiled.evaluate(COLOUR) != plain
    assert not serious(it.page, ".tpu-StatusItem")
    it.show_panel()
    it.in_palette("Stop TPU Run").click()
    expect(it.state).to_contain_text("interrupted", timeout=START)


def test_badges_of_an_edited_cell_stay_away_while_its_run_recompiles_again(notebook: Opens) -> None:
    it = notebook(LOAD, ENDLESS)
    trains(it)
    goes_on(it)
    badges = it.cell(1).locator("button.jp-tpu-badge")
    expect(badges.filter(has_text="recompiled").first).to_be_visible()
    it.cell(1).locator(".cm-content").press("Control+End")
    it.page.keyboard.type("  # looked at")
    expect(badges).to_have_count(0)
    recompiles = it.panel.locator(".tpu-Figure", has_text="Recompiles").locator(".tpu-Figure-value")
    for _ in range(3):
        expect(recompiles).not_to_have_text(recompiles.inner_text(), timeout=SOON)
    expect(badges).to_have_count(0)
    stops(it)
    expect(badges).to_have_count(0)


def test_a_restart_ends_a_live_run_and_the_next_one_is_followed(notebook: Opens, page: Any) -> None:
    it = notebook(LOAD, ENDLESS, SHORT.replace("%%tpu_train", "%%tpu_train --run-name after"))
    trains(it)
    lost = it.record().id
    it.command("notebook:restart-kernel")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(it.panel).to_contain_text("The kernel was restarted", timeout=START)
    expect(it.panel.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(it.status).to_have_count(0)
    it.await_kernel()
    it.run_cell(0)
    expect(it.status).to_contain_text("XLA:CPU rehearsal", timeout=START)
    expect(it.status).not_to_contain_text("steps/s")
    it.run_cell(2)
    expect(it.status).to_contain_text("done", timeout=START)
    expect(it.panel.get_by_role("heading", level=2)).to_have_text("after")
    earlier = it.section("runs").locator(f'li[data-run="{lost}"]')
    expect(earlier).to_contain_text("endless")
    expect(earlier).not_to_contain_text("running")


def test_after_a_restart_the_kernel_is_found_again_with_its_runs(notebook: Opens, page: Any) -> None:
    it = notebook(LOAD, SHORT)
    it.await_kernel()
    it.run_all()
    expect(it.status).to_contain_text("done", timeout=START)
    it.show_panel()
    it.command("notebook:restart-kernel")
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(it.panel).to_contain_text("The kernel was restarted", timeout=START)
    it.panel.get_by_role("button", name="Load tpu_magics").click()
    expect(it.status).to_contain_text("XLA:CPU rehearsal", timeout=START)
    runs = it.section("runs").locator("li[data-run]")
    expect(runs).to_have_count(1)
    runs.first.locator("button").click()
    expect(it.rows).to_have_count(it.record().compiles or 0)


def test_two_notebooks_have_each_their_own_run(notebook: Opens, page: Any) -> None:
    first = notebook(LOAD, SHORT.replace("%%tpu_train", "%%tpu_train --run-name one"), name="one.ipynb")
    first.await_kernel()
    first.run_all()
    expect(first.status).to_contain_text("done", timeout=START)
    first.show_panel()
    head = first.panel.get_by_role("heading", level=2)
    expect(head).to_have_text("one")

    from tests.browser.jupyter import write_notebook

    second = first.path.replace("one.ipynb", "two.ipynb")
    write_notebook(first.server.folder / second, LOAD, SHORT.replace("%%tpu_train", "%%tpu_train --run-name two"))
    first.command("docmanager:open", path=second)
    expect(page.get_by_role("tab", name="two.ipynb")).to_have_attribute("aria-selected", "true")
    first.await_it()
    expect(first.panel).to_contain_text("tpu_magics is not loaded in this notebook", timeout=START)
    first.await_kernel()
    first.run_all()
    expect(head).to_have_text("two", timeout=START)
    expect(first.status).to_contain_text("done", timeout=START)
    page.get_by_role("tab", name="one.ipynb").click()
    expect(head).to_have_text("one")
    page.get_by_role("tab", name="two.ipynb").click()
    expect(head).to_have_text("two")
