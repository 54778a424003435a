"""A run that goes on: seen, stopped, and found again after a reload, a kernel's restart, in two tabs, and apart from
another notebook's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from tests.browser.cells import ENDLESS, GO, LOAD, SHORT, SYNC, WAITING, line_of
from tests.browser.jupyter import SOON, START, Notebook, Server, opened_page, serious, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.process]
Opens = Callable[..., Notebook]
COLOUR = "node => getComputedStyle(node).color"


@pytest.fixture(scope="module")
def shared(server: Server, browser: Any) -> Iterator[Notebook]:
    """One page and one kernel for most tests here; none of them leaves a run that goes on."""
    path = "shared/it.ipynb"
    write_notebook(
        server.folder / path, LOAD, ENDLESS, WAITING, SHORT.replace("%%tpu_train", "%%tpu_train --run-name one")
    )
    with opened_page(browser) as page:
        opened = Notebook(server, page, path)
        opened.await_kernel()
        opened.run_cell(0)
        expect(opened.status).to_contain_text("XLA:CPU rehearsal", timeout=START)
        opened.show_panel()
        yield opened


@pytest.fixture
def it(shared: Notebook) -> Iterator[Notebook]:
    yield shared
    if stop_of(shared).is_visible():
        stops(shared)


def stop_of(notebook: Notebook) -> Any:
    return notebook.panel.get_by_role("button", name="Stop", exact=True)


def trains(notebook: Notebook) -> None:
    """Run the endless cell; afterwards the run is seen in the panel and has compiled more than once."""
    notebook.await_kernel()
    notebook.run_cell(1)
    expect(stop_of(notebook)).to_be_visible(timeout=START)
    expect(notebook.status).to_contain_text("steps/s", timeout=START)
    expect(notebook.rows.nth(1)).to_be_visible(timeout=START)


def goes_on(notebook: Notebook) -> None:
    """The panel has a run that can be stopped, and tells of more steps than a moment ago."""
    expect(stop_of(notebook)).to_be_visible(timeout=START)
    steps = notebook.panel.locator(".tpu-Figure", has_text="step").first.locator(".tpu-Figure-value")
    expect(steps).not_to_have_text(steps.inner_text(), timeout=SOON)


def stops(notebook: Notebook) -> None:
    stop_of(notebook).click()
    expect(notebook.state).to_contain_text("interrupted", timeout=START)


def test_a_live_run_is_seen_and_after_a_reload_and_in_a_second_tab_which_stops_it(it: Notebook) -> None:
    trains(it)
    goes_on(it)
    recompiled = it.badges.filter(has_text="recompiled").first
    expect(recompiled).to_be_visible()
    recompiled.hover()
    tip = it.page.get_by_role("tooltip")
    expect(tip).to_contain_text("python-number")
    assert it.record().live

    it.page.reload()  # the same run is seen in its middle, and then in a second tab, too
    it.await_it()
    expect(it.status).to_contain_text("steps/s", timeout=START)
    if not it.panel.is_visible():
        it.show_panel()
    expect(it.rows.nth(1)).to_be_visible(timeout=START)
    goes_on(it)

    other = Notebook(it.server, it.page.context.new_page(), it.path)
    expect(other.status).to_contain_text("steps/s", timeout=START)
    other.show_panel()
    goes_on(other)
    goes_on(it)
    assert it.record().id == other.panel.locator("article[data-run]").get_attribute("data-run")
    stops(other)
    expect(it.state).to_contain_text("interrupted")
    other.page.close()
    expect(it.status).to_contain_text("interrupted")
    view = it.record()
    assert view.state == "interrupted" and view.compiles and view.compiles > 1
    it.await_kernel()
    line = line_of(ENDLESS, SYNC)
    assert view.compile_log[0].compile.site.line == line
    it.rows.first.get_by_role("button", name=f"line {line}").click()
    expect(it.shown.locator(".jp-tpu-marked-line")).to_have_text(f"        {SYNC}")


def test_the_status_bar_is_amber_from_the_first_recompile(it: Notebook) -> None:
    it.await_kernel()
    it.run_cell(2)
    expect(it.status.get_by_text("1 compile", exact=True)).to_be_visible(timeout=START)  # of the narrow batch
    expect(it.status.get_by_text("0 recompiles", exact=True)).to_be_visible()
    amber = it.status.locator(".tpu-Status-amber")
    expect(amber.filter(has_text="recompile")).to_have_count(0)
    plain = it.status.get_by_text("0 recompiles", exact=True).evaluate(COLOUR)
    (it.server.folder / it.path).with_name(GO).touch()
    recompiled = amber.filter(has_text="! 1 recompile")
    expect(recompiled).to_be_visible(timeout=SOON)
    assert recompiled.evaluate(COLOUR) != plain
    assert not serious(it.page, ".tpu-StatusItem")
    it.in_palette("Stop TPU Run").click()
    expect(it.state).to_contain_text("interrupted", timeout=START)


@pytest.mark.long
def test_badges_of_an_edited_cell_stay_away_while_its_run_recompiles_again(notebook: Opens) -> None:
    it = notebook(LOAD, ENDLESS)
    it.await_kernel()
    it.run_cell(0)
    expect(it.status).to_be_visible(timeout=START)
    it.show_panel()
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


@pytest.mark.long
def test_two_notebooks_have_each_their_own_run(it: Notebook) -> None:
    it.await_kernel()
    it.run_cell(3)
    expect(it.status).to_contain_text("done", timeout=START)
    head = it.panel.get_by_role("heading", level=2)
    expect(head).to_have_text("one")

    second = it.path.replace("it.ipynb", "two.ipynb")
    write_notebook(it.server.folder / second, LOAD, SHORT.replace("%%tpu_train", "%%tpu_train --run-name two"))
    it.command("docmanager:open", path=second)
    expect(it.page.get_by_role("tab", name="two.ipynb")).to_have_attribute("aria-selected", "true")
    it.await_it()
    expect(it.panel).to_contain_text("tpu_magics is not loaded in this notebook", timeout=START)
    it.await_kernel()
    it.run_all()
    expect(head).to_have_text("two", timeout=START)
    expect(it.status).to_contain_text("done", timeout=START)
    for name in ("it.ipynb", "two.ipynb", "it.ipynb"):
        it.page.get_by_role("tab", name=name).click()
        expect(head).to_have_text("two" if name == "two.ipynb" else "one")


def test_a_restart_ends_a_live_run_and_the_kernel_is_found_again_with_its_runs(it: Notebook) -> None:
    trains(it)
    lost = it.record().id
    it.command("notebook:restart-kernel")
    it.page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(it.panel).to_contain_text("The kernel was restarted", timeout=START)
    expect(stop_of(it)).to_have_count(0)
    expect(it.status).to_have_count(0)
    it.panel.get_by_role("button", name="Load tpu_magics").click()
    expect(it.status).to_contain_text("XLA:CPU rehearsal", timeout=START)
    expect(it.status).not_to_contain_text("steps/s")
    earlier = it.section("runs").locator(f'li[data-run="{lost}"]')
    it.await_kernel()
    expect(earlier).to_contain_text("endless", timeout=SOON)
    expect(earlier).not_to_contain_text("running")
    it.run_cell(3)
    expect(it.status).to_contain_text("done", timeout=START)
    expect(it.panel.get_by_role("heading", level=2)).to_have_text("one")
    earlier.locator("button").click()
    expect(it.panel.locator(f'article[data-run="{lost}"]')).to_be_visible()


def test_what_is_started_listens_on_this_machine_only(it: Notebook) -> None:
    """The server, its kernels, and the browser, whatever they open ports for."""
    it.await_kernel()
    seen = {
        connection.laddr.ip
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert "127.0.0.1" in seen and seen <= {"127.0.0.1", "::1"}
