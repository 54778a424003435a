"""What the extension does in a notebook besides following runs: the toolbar, badges, menus and settings; messages that
it cannot read; and all of it in Notebook 7."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.cells import BREAKS, BROKEN, LOAD, SHORT, line_of
from tests.browser.installed import NAME, Environment
from tests.browser.jupyter import SOON, START, Notebook, Server, running_server, serious, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.process]
Opens = Callable[..., Notebook]
COMMANDS = (
    *("Load and Initialize TPU", "Train on TPU", "Check for XLA rules"),
    *("Insert TPU Preflight", "Show TPU Panel"),
)
# A kernel whose tpu_magics is newer than all that is known here.
NEWER = """
from comm import create_comm
hello = {"protocol": "tpu_magics", "v": 2, "type": "hello", "version": "9.0.0", "python_v": 2}
newer = create_comm(target_name="tpu_magics", data=hello)
"""
MESSAGE = """
import json
from IPython import get_ipython
kernel = get_ipython().kernel
def tell(**data):
    for comm in kernel.comm_manager.comms.values():
        if comm.target_name == "tpu_magics":
            message = {"protocol": "tpu_magics", "v": 1, **data}
            kernel.session.send(kernel.iopub_socket, "comm_msg", {"comm_id": comm.comm_id, "data": message})
"""


def test_the_magic_on_top_of_a_cell_by_button_by_keys_and_by_menu(notebook: Opens, page: Any) -> None:
    """The keys in command mode only: where text is typed, they are text."""
    it = notebook("model = loader = 1", BREAKS.strip(), BREAKS.strip())
    it.await_kernel()
    it.choose(1)
    it.shown.get_by_role("button", name="Train on TPU").click()
    expect(it.cell(1)).to_contain_text("%load_ext tpu_magics")  # which comes first
    expect(it.status).to_be_visible(timeout=START)
    it.choose(3)
    page.keyboard.press("t")
    page.keyboard.press("t")
    for index in (2, 3):
        expect(it.cell(index)).to_contain_text("%%tpu_train")
        first, second, *_ = it.source(index).splitlines()
        assert first.split() == ["%%tpu_train", "model", "loader"] and second == "import torch_xla"
    it.cell(0).locator(".cm-content").press("End")
    page.keyboard.type("tt")
    expect(it.cell(0)).to_contain_text("model = loader = 1tt")
    assert not it.source(0).startswith("%%tpu_train")
    it.choose(0)
    commands_are_there(it)


def commands_are_there(it: Notebook) -> None:
    it.page.get_by_role("menuitem", name="Run", exact=True).click()
    labels = it.page.locator(".lm-Menu-itemLabel")
    labels.filter(has_text=re.compile("^TPU$")).click()
    expect(labels.filter(has_text="Train on TPU")).to_be_visible()
    it.page.keyboard.press("Escape")
    it.page.keyboard.press("Escape")
    for name in COMMANDS:
        expect(it.in_palette(name)).to_be_visible()
    expect(it.in_palette("Stop TPU Run")).to_have_count(1)  # out of sight, as long as there is nothing to be stopped
    it.in_palette("Insert TPU Preflight").click()
    expect(it.shown.locator(".jp-Cell", has_text="%tpu_preflight")).to_be_visible()


@pytest.fixture
def own_settings(server: Server) -> Iterator[None]:
    """What a person has set is forgotten."""
    yield
    settings = Path(server.environment.variables()["JUPYTERLAB_SETTINGS_DIR"])
    shutil.rmtree(settings / NAME, ignore_errors=True)


def test_a_check_shows_findings_and_a_badge_until_it_is_switched_off_or_the_cell_edited(
    notebook: Opens, page: Any, own_settings: None
) -> None:
    it = notebook("%load_ext tpu_magics", BREAKS.strip())
    it.await_kernel()
    it.run_cell(0)
    expect(it.status).to_be_visible(timeout=START)
    it.shown.get_by_role("button", name="Check for XLA rules").click()
    findings = it.section("findings")
    expect(findings).to_contain_text("broken rule in", timeout=SOON)
    line = line_of(BREAKS.strip(), BROKEN)
    finding = findings.get_by_role("listitem").first
    finding.get_by_role("button", name=f"line {line}").click()
    expect(it.shown.locator(".jp-tpu-marked-line")).to_have_text(f"        {BROKEN}")
    badge = it.cell(1).locator("button.jp-tpu-badge:visible").first
    badge.hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("Fix:")
    assert not serious(page, "#tpu-magics-panel, .jp-tpu-tip, .jp-tpu-badges")
    for wanted in (False, True):
        it.command("settingeditor:open", query="TPU")
        box = page.locator(f'input[type=checkbox][id*="{NAME}:plugin"][id$="badges"]:visible')
        box.set_checked(wanted)
        page.get_by_role("tab", name="it.ipynb").click()
        expect(it.cell(1).locator("button.jp-tpu-badge")).to_have_count(int(wanted), timeout=SOON)
    it.cell(1).locator(".cm-content").press("End")
    page.keyboard.type("  # looked at")
    expect(it.cell(1).locator("button.jp-tpu-badge")).to_have_count(0)


def test_messages_that_cannot_be_read_change_nothing(notebook: Opens, page: Any) -> None:
    wrong = [
        'tell(type="run", seq=1, request=None)',
        'tell(type="run", seq=1, request=None, record={"v": 1, "figures": 7})',
        'tell(type="update", run="x", seq="two", after=None, patch=[])',
        'tell(type="no such type")',
        'tell(type="runs", runs=[{"id": 1}], request=None)',
        'tell(v="1", type=7)',
    ]
    it = notebook(LOAD, SHORT, MESSAGE.strip(), *wrong, 'tell(v=2, type="hello")', "tell(type='here', run='x', seq=9)")
    it.await_kernel()
    for index in (0, 1, 2):
        it.run_cell(index)
    expect(it.status).to_contain_text("done", timeout=START)
    it.show_panel()
    it.unfold("compiles")
    shown = it.record().compiles or 0
    expect(it.rows).to_have_count(shown)
    for index in range(3, 3 + len(wrong)):
        it.run_cell(index)
    it.run_cell(3 + len(wrong))
    expect(it.panel.get_by_role("alert")).to_contain_text("pip install -U tpu-magics")
    expect(it.rows).to_have_count(shown)
    errors = [said for said in page.said if said.startswith("error") and "404" not in said]
    assert not errors, errors


@pytest.mark.long
def test_another_version_is_told_when_it_is_the_first_thing_heard(notebook: Opens, page: Any) -> None:
    it = notebook(NEWER.strip())
    it.await_kernel()
    it.run_cell(0)
    expect(it.status).to_contain_text("other version", timeout=START)
    it.show_panel()
    expect(it.panel.get_by_role("alert")).to_contain_text("(kernel 2, extension 1): pip install -U tpu-magics")
    expect(it.panel).not_to_contain_text("is not loaded")
    expect(it.panel.get_by_role("button", name="Load tpu_magics")).to_have_count(0)
    assert not serious(page, "#tpu-magics-panel, .tpu-StatusItem")


def test_tab_completes_the_line_of_a_magic(notebook: Opens, page: Any) -> None:
    """JupyterLab waits a second for the kernel's answer."""
    it = notebook("%load_ext tpu_magics", "%%tpu_train --st\nmodel", "%tpu_preflight model --target=v5e-8,v6e-1")
    it.await_kernel()
    it.run_cell(0)
    expect(it.cell(0)).to_contain_text("[1]:", timeout=START)
    for index, press, offered, expected in (
        (1, "Control+Home", "--steps", "%%tpu_train --steps\nmodel"),
        (2, "Control+End", "v6e-128", "%tpu_preflight model --target=v5e-8,v6e-128"),
    ):
        it.cell(index).locator(".cm-content").press(press)
        page.keyboard.press("End")
        page.keyboard.press("Tab")
        page.locator(".jp-Completer-item").filter(has_text=offered).click()
        assert it.source(index) == expected


# -- Notebook 7 --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebook_7(installed: Environment) -> Iterator[Server]:
    pytest.importorskip("notebook", minversion="7", reason="Notebook 7 is in the extra dev")
    with running_server(installed, "notebook") as started:
        yield started


@pytest.mark.long
def test_notebook_7_has_the_panel_the_badges_and_the_commands(notebook_7: Server, page: Any) -> None:
    write_notebook(notebook_7.folder / "it.ipynb", LOAD, SHORT)
    it = Notebook(notebook_7, page, "it.ipynb", classic=True)
    it.await_kernel()
    it.run_all()
    expect(it.badges.first).to_be_visible(timeout=START)
    it.command("tpu-magics:panel")
    expect(it.state).to_contain_text("done")
    it.unfold("compiles")
    expect(it.rows).to_have_count(3)
    it.rows.first.get_by_role("button", name="line").click()
    expect(it.shown.locator(".jp-tpu-marked-line")).to_be_visible()
    expect(it.shown.locator(".tpu-Output")).to_be_visible()
    assert not serious(page, "#tpu-magics-panel")


@pytest.mark.long
def test_notebook_7_has_the_buttons_in_its_toolbar(notebook_7: Server, page: Any) -> None:
    write_notebook(notebook_7.folder / "buttons.ipynb", "model = loader = 1", BREAKS.strip())
    it = Notebook(notebook_7, page, "buttons.ipynb", classic=True)
    it.await_kernel()
    expect(it.shown.get_by_role("button", name="Check for XLA rules")).to_be_visible()
    it.choose(1)
    it.shown.get_by_role("button", name="Train on TPU").click()
    expect(it.cell(2)).to_contain_text("%%tpu_train")  # behind the one that loads the extension
    assert it.source(2).splitlines()[0].split() == ["%%tpu_train", "model", "loader"]
