"""The stop button while a cell trains: through the kernel's own API, whatever the worker is doing."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tpu_magics.errors import TrainingInterrupted
from tpu_magics.magics import train
from tpu_magics.magics.options import train_parser

from .kernel import SLEEPING, Kernel, alive
from .samples import LOADING, MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process
LONG = pytest.mark.long

WITHIN = 5.0  # seconds in which a stopped cell has to end

BUSY = {
    "training": "while True: train(model, 5)",
    "sleeping": "time.sleep(1000)",
    "in a tight C loop": "sum(range(10**13))",
    "deaf to SIGTERM": "ctypes.CDLL(None).signal(15, ctypes.c_void_p(1)); time.sleep(1000)",
    "in a command": "os.system('sleep 1000')",
    "swallowing everything": """
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
""",
}


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    """A notebook with a model that has been trained before, so that all imports are done."""
    kernel.run(MODEL + TRAIN + "import ctypes, os, time").good()
    kernel.run("%tpu_train train model").good()
    kernel.run("before = model.weight.detach().clone()").good()
    return kernel


@pytest.mark.parametrize(
    "doing", [name if name in ("training", "deaf to SIGTERM") else pytest.param(name, marks=LONG) for name in BUSY]
)
def test_the_cell_ends_soon_and_nothing_has_changed(notebook: Kernel, doing: str) -> None:
    cell = notebook.send(
        f"%%tpu_train model\ndef forever(model):\n    print('started', flush=True)\n    {BUSY[doing]}\n"
    )
    notebook.wait_for(cell, "started")
    workers = [process.pid for process in notebook.descendants()]
    assert workers
    assert notebook.stop(cell) < WITHIN
    assert cell.error_type == "TrainingInterrupted"
    assert cell.said.startswith("TrainingInterrupted: The run was interrupted. Why: Rank 0: at `"), cell.said
    assert "What to do: " in cell.said and "Traceback" not in cell.error
    assert f"(In [{notebook.value('len(In)') - 2}], line " in cell.said or doing == "training"
    assert not any(alive(pid) for pid in workers) and notebook.descendants() == []
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("interrupted", False)
    assert "train: done" in notebook.run("%tpu_train train model").good().printed
    assert notebook.value(TRAINED)


def test_the_person_presses_stop_again_and_again(notebook: Kernel) -> None:
    cell = notebook.send("%%tpu_train model\ndef forever(model):\n    print('started')\n    " + BUSY["deaf to SIGTERM"])
    notebook.wait_for(cell, "started")
    began = time.monotonic()
    for _ in range(8):
        notebook.interrupt()
        time.sleep(0.15)
    notebook.finish(cell, timeout=60)
    assert time.monotonic() - began < WITHIN + 8 * 0.15
    assert cell.error_type in ("TrainingInterrupted", "KeyboardInterrupt")
    assert notebook.descendants() == []
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("interrupted", False)
    notebook.run("%tpu_train train model").good()


def test_processes_that_a_worker_has_started_go_with_it(notebook: Kernel) -> None:
    cell = notebook.send(LOADING.format(options=""))
    notebook.wait_for(cell, "loading")
    pids = [process.pid for process in notebook.workers()]
    assert len(pids) == 3, "a worker and its two loaders"
    assert notebook.stop(cell) < WITHIN
    assert not any(alive(pid) for pid in pids)


def test_an_interrupt_before_the_fork_is_the_usual_one(notebook: Kernel) -> None:
    cell = notebook.send(f"%%tpu_train model\nprint('here')\n{SLEEPING}\ndef never(model):\n    pass\n")
    notebook.wait_for(cell, "here")
    assert notebook.stop(cell) < WITHIN
    assert cell.error_type == "KeyboardInterrupt" and notebook.descendants() == []
    assert notebook.value("_tpu.run.name") == "train"
    notebook.run("%tpu_train train model").good()


def test_statements_of_a_cell_that_was_stopped_bring_nothing_home(notebook: Kernel) -> None:
    cell = notebook.send("%%tpu_train\nx = 1\ntrain(model)\nprint('trained')\ntime.sleep(1000)")
    notebook.wait_for(cell, "trained")
    assert notebook.stop(cell) < WITHIN
    assert cell.error_type == "TrainingInterrupted"
    assert notebook.value(f"('x' in globals(), {TRAINED})") == (False, False)


def test_a_run_that_takes_too_long_is_stopped(notebook: Kernel) -> None:
    cell = notebook.run("%%tpu_train model --timeout 3\ndef slow(model):\n    train(model)\n    time.sleep(1000)\n")
    assert cell.error_type == "TrainingFailed" and "3 s" in cell.said and "--timeout" in cell.said
    assert "In [" in cell.said and "time.sleep(1000)" in cell.said, "the place where it was is not shown"
    assert cell.seconds < 30
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("timeout", False)


def test_an_interrupt_before_the_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """In our own checks: there is no line of the person's to show."""
    monkeypatch.setattr(train.launcher, "train_function", Mock(side_effect=KeyboardInterrupt))
    found, args = train.read(train_parser("%tpu_train"), ["f"])
    notebook: Any = SimpleNamespace(namespace={}, say=print)
    with pytest.raises(TrainingInterrupted, match="interrupted before its run started"):
        train.run(notebook, found, args, "f", None)
