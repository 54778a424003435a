"""A run that goes on: seen, stopped, and found again after a reload, a kernel's restart, in two tabs, and apart from
another notebook's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from tests.browser.cells import ENDLESS, GO, LASTING, LOAD, SHORT, SYNC, WAITING, line_of
from tests.browser.jupyter import SOON, START, Notebook, Server, opened_page, serious, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.process]
Opens = Callable[..., Notebook]
COLOUR = "node => getComputedStyle(node).color"


@pytest.fixture(scope="module")
def shared(server: Server, browser: Any) -> Iterator[Notebook]:
    """One page and one kernel for most tests here; none of them leaves a run that goes on."""
    path = "shared/it.ipynb"
    write_notebook(
        server.folder / path,
        LOAD,
        ENDLESS,
        WAITING,
        SHORT.replace("%%tpu_train", "%%tpu_train --run-name one"),
        LASTING,
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
    (shared.server.folder / shared.path).with_name(GO).unlink(missing_ok=True)
    yield shared
    earlier = shared.panel.get_by_role("button", name="Back to the")
    if earlier.is_visible():
        earlier.click()
    if stop_of(shared).is_visible():
        stops(shared)


def stop_of(notebook: Notebook) -> Any:
    return notebook.panel.get_by_role("button", name="Stop", exact=True)


def trains(notebook: Notebook) -> None:
    """Run the endless cell; afterwards the run is seen in the panel and has compiled more than once."""
    notebook.await_kernel()
    notebook.run_cell(1)
    expect(stop_of(notebook)).to_be_visible(timeout=START)
    expect(notebook.status).to_contain_text("Steps", timeout=START)
    notebook.unfold("compiles")
    expect(notebook.rows.nth(1)).to_be_visible(timeout=START)


def goes_on(notebook: Notebook) -> None:
    """The panel has a run that can be stopped, and tells of more steps than a moment ago."""
    expect(stop_of(notebook)).to_be_visible(timeout=START)
    steps = notebook.figure("Steps")
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
    expect(tip).to_contain_text("a Python number changes")
    assert it.record().live

    it.page.reload()  # the same run is seen in its middle, and then in a second tab, too
    it.await_it()
    expect(it.status).to_contain_text("Steps", timeout=START)
    if not it.panel.is_visible():
        it.show_panel()
    it.unfold("compiles")
    expect(it.rows.nth(1)).to_be_visible(timeout=START)
    goes_on(it)

    other = Notebook(it.server, it.page.context.new_page(), it.path)
    expect(other.status).to_contain_text("Steps", timeout=START)
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
    expect(it.figure("Compiles")).to_have_text("1", timeout=START)  # of the narrow batch
    expect(it.figure("Recompiles")).to_have_text("0")
    expect(it.status.locator(".tpu-mod-warning")).to_have_count(0)
    plain = it.status.get_by_text("Steps").evaluate(COLOUR)
    (it.server.folder / it.path).with_name(GO).touch()
    recompiled = it.status.locator(".tpu-mod-warning").filter(has_text="! Recompiles 1")
    expect(recompiled).to_be_visible(timeout=SOON)
    assert recompiled.evaluate(COLOUR) != plain
    expect(it.figure("Recompiles")).to_have_text("! 1")
    box = it.status.bounding_box()
    assert box and box["width"] <= 300
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
    recompiles = it.figure("Recompiles")
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
    expect(it.status).not_to_contain_text("Steps")
    earlier = it.section("runs").locator(f'li[data-run="{lost}"]')
    it.await_kernel()
    expect(earlier).to_contain_text("endless", timeout=SOON)
    expect(earlier).not_to_contain_text("running")
    it.run_cell(3)
    expect(it.status).to_contain_text("done", timeout=START)
    expect(it.panel.get_by_role("heading", level=2)).to_have_text("one")
    earlier.get_by_role("button").click()
    expect(it.panel.locator(f'article[data-run="{lost}"]')).to_be_visible()


# -- one run, one moment, one look -----------------------------------------------------------------------------------

# What is told of a run in the cell, in the panel and in the status bar, all read in one moment.
SEEN = """() => {
  const text = (node, where) => [...node.querySelectorAll(where)].map(each => each.textContent);
  const told = node => node && {
    title: text(node, '.tpu-Title-line > :not(button)'),
    detail: text(node, '.tpu-Title > p'),
    progress: text(node, '.tpu-Progress'),
    figures: text(node, '.tpu-Figure'),
    captions: text(node, '.tpu-Chart-title, .tpu-Chart .tpu-Hidden'),
    problems: text(node, '.tpu-Problem'),
    sections: text(node, '.tpu-Section:not([data-section=findings]):not([data-section=runs]) h3'),
    footer: text(node, '.tpu-Footer'),
  };
  const panel = document.querySelector('.tpu-Panel .tpu-Run');
  const cell = document.querySelector(`.tpu-Output [data-run="${panel.dataset.run}"]`);
  return {cell: told(cell), panel: told(panel), status: text(document, '.tpu-Status-word')};
}"""


def test_what_is_on_the_screen_twice_is_equal_at_every_moment(it: Notebook) -> None:
    trains(it)
    expect(it.cell(1).locator(".tpu-Run")).to_be_visible(timeout=START)
    chance = random.Random(20)
    moments = set()
    for _ in range(20):
        it.page.wait_for_timeout(chance.uniform(50, 900))
        seen = it.page.evaluate(SEEN)
        assert seen["cell"] == seen["panel"]
        [steps] = [word for word in seen["status"] if word.startswith("Steps")]
        assert steps.replace(" ", "") in seen["panel"]["figures"][0], "the status bar is of another moment"
        moments.add(steps)
    assert len(moments) > 5, "nothing went on"


def test_stop_says_at_once_that_it_was_pressed_everywhere(it: Notebook) -> None:
    trains(it)
    stop = it.cell(1).get_by_role("button", name="Stop", exact=True)
    expect(stop).to_be_visible(timeout=START)
    where = f'[data-run="{it.record().id}"] .tpu-State, .tpu-Status'
    texts = "[...document.querySelectorAll(where)].map(one => one.textContent)"
    click = f"async (node, where) => {{ node.click(); await new Promise(requestAnimationFrame); return {texts}; }}"
    said = stop.evaluate(click, where)
    assert len(said) == 3 and all("stopping…" in one for one in said), said
    expect(it.state).to_contain_text("interrupted", timeout=START)


# Tags and classes of a run, but for what says its state.
SKELETON = """node => {
  const state = '.tpu-State, .tpu-mod-stop, .tpu-Progress, .tpu-Progress *, .tpu-Title > p, .uplot *';
  const classes = one => [...one.classList].filter(name => !name.startsWith('tpu-mod-')).join(' ');
  return [...node.querySelectorAll('*')].filter(one => !one.matches(state)).map(one =>
    `${one.tagName} ${classes(one)} ${one.dataset.section ?? ''}`);
}"""


def test_a_run_looks_the_same_when_it_is_over(it: Notebook) -> None:
    it.await_kernel()
    it.run_cell(4)
    output = it.cell(4).locator(".tpu-Run")
    expect(it.figure("Compiles", output)).to_have_text("2", timeout=START)
    expect(output.locator(".tpu-Chart")).to_be_visible(timeout=START)
    it.unfold("compiles", output)
    output.locator("tbody .tpu-Unfold").first.click()
    output.evaluate("node => { node.kept = true; }")
    live = output.evaluate(SKELETON)
    (it.server.folder / it.path).with_name(GO).touch()
    expect(output.locator(".tpu-State")).to_have_text("✓ done", timeout=START)
    it.await_kernel()
    expect(stop_of(it)).to_have_count(0)
    assert output.evaluate("node => node.kept"), "it was drawn anew"
    assert output.evaluate(SKELETON) == live


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
