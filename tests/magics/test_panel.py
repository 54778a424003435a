"""The panel in real kernels, the newest and Colab's: while a cell trains, and what is left of it in the notebook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.launch.launching import wait_until
from tpu_magics.magics.front_ends import open_mailbox

from .conftest import Kernels, as_new
from .kernel import EITHER, LOAD, PANEL, Cell, Kernel
from .samples import FOREVER, MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process

WITHIN = 5.0  # seconds in which a stopped cell has to end
WIDGET = "application/vnd.jupyter.widget-view+json"
RECORD = "application/vnd.tpu-magics.run+json"
PAGE = {"text/html", "text/plain", RECORD}
LIVE = {WIDGET, "text/plain", RECORD}
WIDGETS_LEFT = """
import ipywidgets.widgets.widget as _module
_found = getattr(_module, "_instances", None)
print(len(_module.Widget.widgets if _found is None else _found))
"""


@pytest.fixture(params=EITHER)
def notebook(request: pytest.FixtureRequest, kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    """A notebook whose imports are done. Afterwards neither a process nor a widget may be left."""
    with as_new(kernels(request.param), tmp_path) as kernel:
        version = kernel.value("__import__('ipykernel').version_info[0]")
        assert version == 6 if request.param == "old" else version > 6
        kernel.run(MODEL + TRAIN + "import os, time").good()
        before = widgets_left(kernel)
        yield kernel
        if kernel.descendants():
            kernel.run("%tpu_stop")
        # A background run's page comes before the last of its widgets is closed.
        assert wait_until(lambda: widgets_left(kernel) <= before)


def widgets_left(kernel: Kernel) -> int:
    return int(kernel.run(WIDGETS_LEFT).good().printed.splitlines()[-1])


def button_of(cell: Cell) -> str:
    """The comm of the panel's stop button."""
    [opened] = [
        each for each in cell.comms if each.kind == "comm_open" and _state(each)["_model_name"] == "ButtonModel"
    ]
    return str(opened.content["comm_id"])


def _state(output: Any) -> dict[str, Any]:
    state: dict[str, Any] = output.content["data"].get("state", {})
    return state


def click(kernel: Kernel, comm: str, **header: str) -> None:
    """As a front end sends it, on the shell channel."""
    data = {"method": "custom", "content": {"event": "click"}}
    message = kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    message["header"].update(header)
    kernel.client.shell_channel.send(message)


def ended_as_stopped(kernel: Kernel, cell: Cell) -> None:
    began = time.monotonic()
    kernel.finish(cell, timeout=60)
    assert time.monotonic() - began < WITHIN
    assert cell.error_type == "TrainingInterrupted", cell.said
    assert cell.said.startswith("TrainingInterrupted: The run was interrupted."), cell.said
    assert kernel.descendants() == []
    assert kernel.value(f"(_tpu.status, {TRAINED})") == ("interrupted", False)
    assert "train: done" in kernel.run("%tpu_train train model").good().printed
    assert kernel.value(TRAINED)


# -- the stop button, while the cell runs ------------------------------------------------------------------------------


def test_a_click_stops_the_run_while_its_cell_runs(notebook: Kernel) -> None:
    cell = notebook.started()
    click(notebook, button_of(cell))
    ended_as_stopped(notebook, cell)


def test_a_click_through_a_subshell(notebook: Kernel) -> None:
    if notebook.value("__import__('ipykernel').version_info[0]") < 7:
        assert not notebook.value("getattr(get_ipython().kernel, '_supports_kernel_subshells', False)")
        return
    header = notebook.subshell()
    cell = notebook.started()
    click(notebook, button_of(cell), **header)
    ended_as_stopped(notebook, cell)


def test_cells_that_wait_run_afterwards_in_their_order(notebook: Kernel) -> None:
    cell = notebook.started()
    waiting = [notebook.send(f"order = [*globals().get('order', []), {number}]") for number in range(5)]
    time.sleep(0.3)
    click(notebook, button_of(cell))
    waiting += [notebook.send(f"order = [*globals().get('order', []), {number}]") for number in range(5, 8)]
    notebook.finish(cell, timeout=60)
    for each in waiting:
        notebook.finish(each).good()
    assert notebook.value("order") == list(range(8))


def test_run_all_ends_with_the_run_that_is_stopped(notebook: Kernel) -> None:
    """The front end asks that cells which wait behind an error be given up."""
    client = notebook.client
    stopped = Cell(client.execute(FOREVER.format(options=""), allow_stdin=False, stop_on_error=True), time.monotonic())
    notebook.cells[stopped.id] = stopped
    notebook.wait_for(stopped, "started")
    after = notebook.send("print('this cell has run')")
    time.sleep(0.3)
    click(notebook, button_of(stopped))
    notebook.finish(stopped, timeout=60)
    assert stopped.error_type == "TrainingInterrupted"
    notebook.finish(after)
    assert after.count == 0 and after.printed == "", "it was not given up"
    notebook.run("print('the next one')").good()


def test_clicks_on_other_widgets_wait_for_the_cell(notebook: Kernel) -> None:
    notebook.run(
        "import ipywidgets\nmine, clicks = ipywidgets.Button(), []\nmine.on_click(lambda _: clicks.append(_tpu.status))"
    ).good()
    cell = notebook.started()
    click(notebook, notebook_widget(notebook))
    time.sleep(0.5)
    assert cell.count is None
    click(notebook, button_of(cell))
    notebook.finish(cell, timeout=60)
    assert notebook.value("clicks") == ["interrupted"]
    notebook.run("mine.close(); mine.layout.close(); mine.style.close()").good()


def notebook_widget(kernel: Kernel) -> str:
    """The comm of the newest button of the person."""
    opened = [
        each
        for cell in kernel.cells.values()
        for each in cell.comms
        if each.kind == "comm_open" and _state(each)["_model_name"] == "ButtonModel" and not cell.panel
    ]
    return str(opened[-1].content["comm_id"])


def test_nonsense_on_the_shell_channel_does_no_harm(notebook: Kernel) -> None:
    cell = notebook.started()
    session, channel = notebook.client.session, notebook.client.shell_channel
    for content in ({}, {"comm_id": 7}, {"comm_id": "x", "data": None}, {"comm_id": button_of(cell), "data": []}):
        channel.send(session.msg("comm_msg", content))
    channel.send(session.msg("no_such_request", {"x": 1}))
    time.sleep(0.5)
    assert cell.count is None
    click(notebook, button_of(cell))
    ended_as_stopped(notebook, cell)


def test_a_kernel_that_is_built_otherwise_has_no_mailbox() -> None:
    """Then the button is disabled and says why (tests/panel/test_live.py)."""
    assert open_mailbox(object()) is None
    assert open_mailbox(SimpleNamespace(shell_channel_thread=None, shell_stream=None, session=None)) is None
    assert open_mailbox(SimpleNamespace(shell_channel_thread=object())) is None


# -- live, then a page -------------------------------------------------------------------------------------------------


def test_the_widgets_give_way_to_a_page(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_train train model").good()
    live, page = cell.panel
    assert (live.kind, page.kind) == ("display_data", "update_display_data")
    assert live.display_id == page.display_id and live.display_id.startswith(PANEL)
    assert set(live.content["data"]) == LIVE and set(page.content["data"]) == PAGE
    opened = {each.content["comm_id"] for each in cell.comms if each.kind == "comm_open"}
    closed = {each.content["comm_id"] for each in cell.comms if each.kind == "comm_close"}
    assert live.content["data"][WIDGET]["model_id"] in opened and opened == closed
    assert "train: ✓ done" in page.text
    assert cell.printed == "tpu_magics: train: done; updated in the notebook: model\n", "the rest is in the panel"


def test_a_run_that_fails_leaves_its_page_above_the_error(notebook: Kernel) -> None:
    cell = notebook.run("%%tpu_train model\ndef broken(model):\n    train(model)\n    boom\n")
    assert cell.error_type == "TrainingFailed"
    assert "failed" in cell.panel[-1].text and "name 'boom' is not defined" in cell.panel[-1].text
    assert set(cell.panel[-1].content["data"]) == PAGE


def test_plain_runs_have_no_panel(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_train train model --plain").good()
    assert not cell.panel and not cell.comms
    assert cell.printed.startswith("status: done\n")


def test_what_is_captured_has_no_panel(notebook: Kernel) -> None:
    cell = notebook.run("%%capture caught\n%%tpu_train model\ndef f(model):\n    return train(model)\n").good()
    assert not cell.panel and not cell.comms
    assert "f: done, 1 rank on XLA:CPU, 3 steps in " in notebook.value("caught.stdout")


def test_clear_output_leaves_the_panel(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train model
from IPython.display import clear_output
def clears(model):
    print("gone")
    clear_output(wait=True)
    print("gone, too")
    clear_output()
    print("stays")
    return train(model)
"""
    ).good()
    kinds = [each.kind for each in cell.panel]
    assert kinds == ["display_data", "display_data", "display_data", "update_display_data"]
    assert len({each.display_id for each in cell.panel}) == 1


def test_a_panel_that_fails_leaves_the_run_alone(notebook: Kernel) -> None:
    notebook.run("%unload_ext tpu_magics").good()
    notebook.run(LOAD).good()  # no front end shows the run: its widgets are updated at each look
    notebook.run(
        """
from tpu_magics.panel import live
kept = live.page
def fails(view, *sizes):
    if view.state != "starting":
        raise ValueError("no such part")
    return kept(view, *sizes)
live.page = fails
"""
    ).good()
    cell = notebook.run("%%tpu_train model\ndef f(model):\n    loss = train(model)\n    time.sleep(1)\n").good()
    assert (
        "tpu_magics: The panel stopped because of an error, the run continues: ValueError: no such part\n"
        in cell.printed
    )
    assert cell.printed.count("no such part") == 1
    assert "f: done; updated in the notebook: model" in cell.printed and notebook.value(TRAINED)
    assert "This panel has stopped: ValueError: no such part" in cell.panel[-1].text
    notebook.run("live.page = lambda *args: 1 / 0").good()
    cell = notebook.run("%tpu_train train model").good()
    assert (
        "tpu_magics: The panel could not be opened, the run continues: ZeroDivisionError: division by zero\n"
        in cell.printed
    )
    assert not cell.panel and "train: done" in cell.printed
    notebook.run("live.page = kept").good()
    assert "train: ✓ done" in notebook.run("%tpu_train train model").good().panel[-1].text


# -- runs in the background --------------------------------------------------------------------------------------------


def shown_in(kernel: Kernel, display_id: str) -> dict[str, Any]:
    """What the displays of a panel show now."""
    bundles = [
        message["content"]["data"]
        for message in kernel.messages
        if message["msg_type"] in ("display_data", "update_display_data")
        and message["content"]["transient"].get("display_id") == display_id
    ]
    return dict(bundles[-1])


def test_a_click_stops_a_run_in_the_background(notebook: Kernel) -> None:
    cell = notebook.run(FOREVER.format(options="--background")).good()
    [live] = cell.panel
    assert set(live.content["data"]) == LIVE
    notebook.wait_until(lambda: updates(notebook, cell) > 3)
    click(notebook, button_of(cell))
    notebook.wait_until(lambda: set(shown_in(notebook, live.display_id)) == PAGE, WITHIN)
    assert notebook.descendants() == []
    time.sleep(0.3)
    told = notebook.run("print(_tpu.status)").good().printed
    assert told.startswith("tpu_magics: the background run 'forever' was stopped.") and told.endswith("interrupted\n")
    assert "interrupted" in shown_in(notebook, live.display_id)["text/plain"]


def updates(kernel: Kernel, cell: Cell) -> int:
    """Messages to the widgets of a cell, also after it has ended."""
    ids = {each.content["comm_id"] for each in cell.comms}
    return sum(m["msg_type"] == "comm_msg" and m["content"]["comm_id"] in ids for m in kernel.messages)


def test_the_page_comes_without_any_cell_and_tells_when_all_is_home(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_train train model --background").good()
    [live] = cell.panel
    notebook.wait_until(lambda: set(shown_in(notebook, live.display_id)) == PAGE)
    assert "collecting results" in shown_in(notebook, live.display_id)["text/plain"]
    notebook.run("_tpu.wait()").good()
    assert "train: ✓ done" in shown_in(notebook, live.display_id)["text/plain"]


def test_the_panel_attaches_to_the_run_that_goes_on(notebook: Kernel) -> None:
    cell = notebook.run(FOREVER.format(options="--background")).good()
    again = notebook.run("%tpu_panel").good()
    first, other = (one.panel[0].content for one in (cell, again))
    assert first["data"][WIDGET] == other["data"][WIDGET] and first["transient"] == other["transient"]
    opened = [_state(each)["_model_name"] for each in again.comms if each.kind == "comm_open"]
    assert "VBoxModel" not in opened, "it has made widgets of its own"
    notebook.run("%tpu_stop").good()
    assert set(shown_in(notebook, cell.panel[0].display_id)) == PAGE


def test_the_panel_attaches_to_a_run_that_had_none(notebook: Kernel) -> None:
    assert not notebook.run(FOREVER.format(options="--background --plain")).good().panel
    cell = notebook.run("%tpu_panel forever").good()
    assert cell.panel, cell.shown
    assert WIDGET in cell.panel[0].content["data"]
    notebook.wait_until(lambda: updates(notebook, cell) > 3)
    click(notebook, button_of(cell))
    notebook.wait_until(lambda: set(shown_in(notebook, cell.panel[0].display_id)) == PAGE, WITHIN)


# -- %tpu_panel --------------------------------------------------------------------------------------------------------


def test_old_runs_are_shown_as_they_were(notebook: Kernel) -> None:
    notebook.run("%tpu_train train model --plain --run-name first").good()
    notebook.run("%%tpu_train --plain --run-name second\nraise ValueError('no')")
    for words, told in (("", "second: ✗ failed"), ("first", "first: ✓ done"), ("last", "second: ✗ failed")):
        cell = notebook.run(f"%tpu_panel {words}").good()
        [data] = cell.displays
        assert set(data) == PAGE and data["text/plain"].startswith(told) and not cell.comms
    assert "ValueError: no" in notebook.run("%tpu_panel second").displays[0]["text/html"]
    everything = notebook.run("%tpu_panel first --all").good()
    assert everything.printed.startswith("first: ✓ done") and "\nPrecision: " in everything.printed
    assert (
        notebook.run("import tpu_magics; tpu_magics.show_run('first')")
        .good()
        .displays[0]["text/plain"]
        .startswith("first: ✓ done")
    )


def test_a_run_that_is_not_there(notebook: Kernel) -> None:
    notebook.run("%tpu_train train model --steps 1 --plain").good()
    cell = notebook.run("%tpu_panel nowhere")
    assert cell.said.startswith("TpuMagicsError: There is no run 'nowhere'.") and "%tpu_runs lists all" in cell.said
