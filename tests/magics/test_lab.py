"""The kernel's side of the JupyterLab extension, in the newest kernel and in Colab's: while a cell trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tpu_magics

from .conftest import Kernels, loaded_anew
from .front import Front, comms, put_together, told
from .kernel import EITHER, LOAD, Cell, Kernel
from .samples import FOREVER, MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process

WITHIN = 5.0  # seconds in which a stopped cell has to end
RECORD = "application/vnd.tpu-magics.run+json"


@pytest.fixture(params=EITHER)
def notebook(request: pytest.FixtureRequest, kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    with loaded_anew(kernels(request.param), tmp_path) as kernel:
        kernel.run(MODEL + TRAIN + "import os, time").good()
        yield kernel
        if kernel.descendants():
            kernel.run("%tpu_stop")


def has_subshells(kernel: Kernel) -> bool:
    return int(kernel.value("__import__('ipykernel').version_info[0]")) >= 7


def live(front: Front) -> str:
    """Waits until a run is told of as it goes on; gives its id."""
    front.kernel.wait_until(lambda: len(front.told("update")) > 2)
    return str(front.told("update")[-1]["run"])


def stopped(front: Front, cell: Cell, run: str) -> None:
    answer, began = front.ask("stop", run=run), time.monotonic()
    assert answer["type"] == "stopping" and answer["run"] == run
    front.kernel.finish(cell, timeout=60)
    assert time.monotonic() - began < WITHIN and cell.error_type == "TrainingInterrupted"


# -- the beginning -----------------------------------------------------------------------------------------------------


def test_hello_at_load_belongs_to_no_cell(notebook: Kernel) -> None:
    [opened] = [one for one in notebook.messages if one["msg_type"] == "comm_open"]
    assert opened["parent_header"] == {} and opened["content"]["target_name"] == "tpu_magics"
    hello = opened["content"]["data"]
    assert (hello["protocol"], hello["v"], hello["type"]) == ("tpu_magics", 1, "hello")
    assert (hello["version"], hello["python_v"]) == (tpu_magics.__version__, 1)
    assert hello["answers"] == has_subshells(notebook)
    assert not {"state", "method", "buffer_paths"} & set(hello)
    assert Front(notebook).greets().keys() == hello.keys()


def test_nothing_is_said_before_a_front_end_has_said_something(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_train train model 20").good()
    notebook.run("%tpu_check").good()
    assert {data["type"] for data in told(notebook)} == {"hello"}, "a hello for each run, and nothing else"
    front = Front(notebook)
    front.greets()
    notebook.wait_until(lambda: bool(front.told("findings")))
    assert front.told("findings")[0]["checked"].endswith("cells") and front.told("hello")[-1]["run"]
    assert all(each.content["data"].get("protocol") is None for each in cell.comms)


def test_the_host_is_told_when_it_is_known(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    notebook.run("%tpu_init").good()
    notebook.wait_until(lambda: bool(front.told("hello")[-1]["host"]))
    host = front.told("hello")[-1]["host"]
    assert (host["title"], host["rehearsal"], host["chips"]) == ("XLA:CPU rehearsal", True, None)
    assert "Device: CPU" in host["detail"]


def test_run_all_in_a_page_that_is_just_being_loaded(notebook: Kernel) -> None:
    """What the page says waits behind the cells that were sent before; the run is followed all the same."""
    front = Front(notebook)
    first = notebook.send("time.sleep(1)\n%tpu_init")
    cell = notebook.send(FOREVER.format(options=""))
    front.say("hello")
    notebook.finish(first).good()
    notebook.wait_for(cell, "started")
    notebook.wait_until(lambda: front.told("hello")[-1]["live"], 5)
    hello = front.told("hello")[-1]
    assert hello["host"]["rehearsal"]
    assert front.ask("open", run=hello["run"], within=3)["record"]["live"]
    stopped(front, cell, live(front))


# -- while a run goes on -----------------------------------------------------------------------------------------------


def test_updates_while_a_rehearsal_trains_are_the_whole_run(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    front.say("rate", seconds=0.1)
    cell = notebook.run("%tpu_train train model 1000 -n 2").good()
    notebook.wait_until(lambda: bool(front.told("run")) and not front.told("run")[-1]["record"]["live"])
    runs, updates = front.told("run"), front.told("update")
    run = runs[0]["record"]["id"]
    assert [hello["run"] for hello in front.told("hello") if hello["live"]] == [run]
    assert runs[0]["record"]["live"] and updates
    assert all(one["request"] is None for one in runs)
    put_together(front.told("run", "update"), run)
    last = runs[-1]["record"]
    parts = {one["key"]: one for one in last["sections"]}
    assert last["state"] == "done" and len(parts["ranks"]["rows"]) == 2 and parts["rehearsal"]["summary"]
    assert last["figures"][2]["value"] == str(len(parts["compiles"]["items"])) != "0"
    compiled = parts["compiles"]["items"][0]
    assert compiled["site"]["path"].startswith("In [") and compiled["facts"]
    assert notebook.value(TRAINED) and front.ask("open", run=run)["record"] == last
    assert set(cell.panel[-1].content["data"]) == {"text/plain", "text/html", RECORD}
    assert cell.panel[-1].content["data"][RECORD]["id"] == run


def test_a_busy_kernel_answers_and_is_stopped(notebook: Kernel) -> None:
    front = Front(notebook)
    assert front.greets()["answers"] == has_subshells(notebook), "an ordinary cell keeps ipykernel 6 from answering"
    cell = notebook.started()
    run = live(front)
    assert front.told("hello")[-1]["answers"] is True, "it waits for a run, and looks for messages meanwhile"
    opened = front.ask("open", run="current", within=3)
    assert opened["record"]["id"] == run and opened["record"]["live"]
    assert opened["record"]["background"] is False
    notebook.wait_until(lambda: front.told("update")[-1]["seq"] > opened["seq"] + 1)
    put_together([opened, *(one for one in front.told("update") if one["after"] >= opened["seq"])], run)
    assert front.ask("runs", within=3)["runs"][0]["id"] == run
    assert front.ask("check", within=10, cells=[])["findings"] == []
    stopped(front, cell, run)
    notebook.wait_until(lambda: front.told("run")[-1]["record"]["state"] == "interrupted")
    assert front.told("run")[-1]["record"]["failure"]["what"]
    assert front.ask("stop", run=run)["what"].endswith("has ended already.")
    assert front.told("hello")[-1]["answers"] == has_subshells(notebook)


def test_a_page_that_was_reloaded_learns_the_comm_from_here(notebook: Kernel) -> None:
    Front(notebook).greets()
    cell = notebook.started()
    before = len(notebook.messages)
    seen: list[dict[str, Any]] = []

    def is_here() -> bool:
        seen[:] = [
            one["content"]
            for one in notebook.messages[before:]
            if one["msg_type"] == "comm_msg" and one["content"]["data"].get("type") == "here"
        ]
        return bool(seen)

    notebook.wait_until(is_here, 5)
    assert "state" not in seen[0]["data"] and seen[0]["data"]["seq"] >= 1
    reloaded = Front(notebook, seen[0]["comm_id"])
    record = reloaded.ask("open", run=seen[0]["data"]["run"], within=3)["record"]
    assert record["live"]
    stopped(reloaded, cell, record["id"])


def test_a_page_may_open_a_comm_while_the_kernel_is_busy(notebook: Kernel) -> None:
    cell = notebook.started()
    page = Front(notebook).opens()
    notebook.wait_until(lambda: bool(page.told("hello")), 3)
    hello = page.told("hello")[0]
    assert hello["live"] and hello["host"]["rehearsal"]
    run = live(page)
    assert hello["run"] == run
    stopped(page, cell, run)


def test_two_pages_on_one_kernel(notebook: Kernel) -> None:
    """One has the kernel's comm, the other one of its own; closing it leaves the first."""
    first, second = Front(notebook), Front(notebook).opens()
    first.greets()
    second.greets()
    cell = notebook.started()
    run = live(first)
    assert live(second) == run
    seqs = [one["seq"] for one in second.told("update")][:3]
    assert [one["seq"] for one in first.told("update")][:3] == seqs
    assert second.ask("open", run=run)["seq"] >= seqs[-1]
    second.closes()
    stopped(first, cell, run)
    notebook.run("1").good()
    heard = len(second.told())
    notebook.run("%tpu_train train model --plain").good()
    assert len(second.told()) == heard


def test_a_page_without_the_extension_closes_the_comm_for_nobody(notebook: Kernel) -> None:
    front = Front(notebook)
    front.closes()
    assert front.greets()["type"] == "hello"
    cell = notebook.run("%tpu_train train model 3").good()
    front.closes()
    assert front.ask("open", run="current")["record"]["state"] == "done"
    assert "comm" not in cell.printed.lower()


def test_through_a_subshell(notebook: Kernel) -> None:
    if not has_subshells(notebook):
        return
    header = notebook.subshell()
    front = Front(notebook)
    cell = notebook.send("import time\nprint('begun', flush=True)\ntime.sleep(4)\nprint('over')")
    notebook.wait_for(cell, "begun")
    request = front.say("runs", header)
    notebook.wait_until(lambda: bool(front.answers(request)), 3)
    assert "over" not in cell.printed, "it waited for the cell"
    page = Front(notebook).opens(**header)
    notebook.wait_until(lambda: bool(page.told("hello")), 3)
    assert "over" not in notebook.finish(cell).printed.replace("over", "", 1)


# -- runs without a panel, and in the background -----------------------------------------------------------------------


def test_plain_and_captured_runs_are_followed_too(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    plain = notebook.run("%tpu_train train model 3 --plain --run-name plain").good()
    assert not plain.panel and plain.printed.startswith("status: done")
    captured = "%%capture caught\n%%tpu_train model --run-name captured\ndef f(model):\n    return train(model)\n"
    assert not notebook.run(captured).good().panel
    notebook.run("1").good()
    ended = [one["record"] for one in front.told("run") if not one["record"]["live"]]
    assert [view["name"] for view in ended] == ["plain", "captured"]


def test_a_run_in_the_background(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    notebook.run(FOREVER.format(options="--background")).good()
    run = live(front)
    assert front.ask("open", run="current")["record"]["background"] is True
    notebook.run("%unload_ext tpu_magics").good()
    notebook.run(LOAD).good()
    again = Front(notebook)
    assert again.comm != front.comm and again.greets() | {"host": 0} == {**again.told("hello")[0], "host": 0}
    assert again.told("hello")[0]["run"] == run and again.told("hello")[0]["live"]
    assert again.ask("open", run=run)["record"]["live"] and live(again) == run
    assert again.ask("stop", run=run)["type"] == "stopping"
    notebook.wait_until(lambda: notebook.descendants() == [], WITHIN)
    # The thread that watched it ends a moment after the last worker; the cell after that brings the run home.
    notebook.wait_until(lambda: notebook.run("print(_tpu.status)").printed.endswith("interrupted\n"), 20)
    notebook.wait_until(lambda: again.told("run")[-1]["record"]["state"] == "interrupted")
    assert len(comms(notebook)) == 2
