"""The JupyterLab extension while TensorFlow trains in the kernel's own main thread, which answers nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import overlay

from .front import Front, put_together
from .kernel import KERNELS, LOAD, Kernel, running_kernel
from .test_tensorflow import BUILD, ENDLESS, kernel_path


@pytest.fixture(scope="module", params=KERNELS)
def notebook(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    before = overlay.old_kernel() if request.param == "old" else ()
    with running_kernel(tmp_path_factory.mktemp("kernel"), **kernel_path(*before)) as kernel:
        kernel.run(LOAD).good()
        kernel.run("%tpu_init --framework tensorflow").good()
        kernel.run(BUILD).good()
        yield kernel


def test_it_is_followed_and_can_be_stopped_where_the_kernel_has_subshells(notebook: Kernel) -> None:
    front = Front(notebook)
    assert front.greets()["host"]["title"] == "XLA:CPU rehearsal"
    cell = notebook.wait_for(notebook.send(ENDLESS), "begun")
    notebook.wait_until(lambda: len(front.told("update")) > 3)
    hello, run = front.told("hello")[-1], front.told("update")[-1]["run"]
    assert hello["run"] == run and hello["live"]
    if hello["answers"]:
        notebook.client.control_channel.send(notebook.client.session.msg("create_subshell_request"))
        header = {"subshell_id": notebook.client.get_control_msg(timeout=10)["content"]["subshell_id"]}
        opened = front.say("open", header, run=run)
        notebook.wait_until(lambda: bool(front.answers(opened)), 5)
        assert front.answers(opened)[0]["record"]["view"]["live"]
        front.say("stop", header, run=run)
    else:
        put_together(front.told("run", "update"), run)
        notebook.interrupt()
    began = time.monotonic()
    notebook.finish(cell, timeout=60)
    assert cell.error_type == "TrainingInterrupted" and time.monotonic() - began < 10
    notebook.run("1").good()
    last = front.told("run")[-1]["record"]["view"]
    assert (last["state"], last["live"]) == ("interrupted", False)
    assert front.greets()["answers"] == hello["answers"], "any cell keeps it from answering, as this one did"


def test_a_plain_run_is_followed(notebook: Kernel, tmp_path: Path) -> None:
    notebook.run(f"import os; os.chdir({str(tmp_path)!r})").good()
    front = Front(notebook)
    front.greets()
    notebook.run("%%tpu_train --plain --run-name plain\nmodel.fit(x, y, verbose=0)").good()
    notebook.run("1").good()
    view = front.told("run")[-1]["record"]["view"]
    assert (view["name"], view["state"]) == ("plain", "done") and view["steps"] >= 2
