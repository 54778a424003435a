"""`--background`: the cell returns at once, other cells run meanwhile, and the results come home between cells."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .kernel import SLEEPING, Cell, Kernel
from .samples import MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process

TICKS = """%%tpu_train model --background
def ticking(model):
    for i in range({ticks}):
        print("tick", i)
        time.sleep(0.1)
    return train(model)
"""
FOREVER = TICKS.format(ticks=10**6)


@pytest.fixture
def notebook(kernel: Kernel) -> Iterator[Kernel]:
    """A notebook whose imports are done; a run that a test leaves is stopped."""
    kernel.run(MODEL + TRAIN + "import time, os").good()
    kernel.run("%tpu_train train model --steps 1").good()
    yield kernel
    if kernel.descendants():
        kernel.run("%tpu_stop")


def shown_in(kernel: Kernel, cell: Cell) -> str:
    """What the background run's one display shows now."""
    [display] = cell.of("display_data")
    updates = [
        message["content"]
        for message in kernel.messages
        if message["msg_type"] == "update_display_data"
        and message["content"]["transient"]["display_id"] == display.display_id
    ]
    return str((updates[-1] if updates else display.content)["data"]["text/plain"])


def ended(kernel: Kernel) -> bool:
    return not kernel.descendants()


def told_of_the_end(kernel: Kernel, code: str) -> Cell:
    """The first cell to which the run's end is told: it is noticed a moment after the last process has gone."""
    kernel.wait_until(lambda: ended(kernel))
    for _ in range(100):
        cell = kernel.run(code).good()
        if cell.printed.startswith("tpu_magics: the background run"):
            return cell
        time.sleep(0.1)
    raise AssertionError(f"the end was not told; the last cell printed: {cell.printed!r}")


def test_it_returns_at_once_and_its_prints_go_to_one_display(notebook: Kernel) -> None:
    cell = notebook.run(TICKS.format(ticks=25)).good()
    assert notebook.descendants(), "the cell has waited for the run"
    assert "Training 'ticking' in the background: _tpu.wait() loads its results" in cell.printed
    other = notebook.run("time.sleep(1.2); print('meanwhile')").good()
    assert other.printed == "meanwhile\n", "the run's prints are in another cell"
    assert not other.of("display_data") and "tick 3" in shown_in(notebook, cell)
    notebook.wait_until(lambda: ended(notebook))
    notebook.wait_until(lambda: "tick 24" in shown_in(notebook, cell), 5)
    assert shown_in(notebook, cell).splitlines() == ["[ticking]", *(f"tick {i}" for i in range(25))]
    notebook.run("_tpu.wait()").good()


def test_the_last_lines_are_shown_without_any_cell(notebook: Kernel) -> None:
    """Many lines at the very end, sooner than the display is updated."""
    cell = notebook.run("%%tpu_train --background\ndef quick():\n    for i in range(30): print('line', i)\n").good()
    notebook.wait_until(lambda: "line 29" in shown_in(notebook, cell), 20)
    notebook.run("_tpu.wait()").good()


def test_wait_brings_the_weights_home(notebook: Kernel) -> None:
    notebook.run(TICKS.format(ticks=5)).good()
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("running", False)
    assert "its status is running" in notebook.run("_tpu.value").said
    assert notebook.value(f"(_tpu.wait() is _tpu, _tpu.status, _tpu.value > 0, {TRAINED})") == (
        True,
        "done",
        True,
        True,
    )
    assert notebook.value("_tpu.wait().steps") == 3
    assert 0.4 < notebook.value("_tpu.run.summary().seconds") < 60


def test_weights_come_home_before_the_next_cell_after_the_end(notebook: Kernel) -> None:
    notebook.run(TICKS.format(ticks=3)).good()
    cell = told_of_the_end(notebook, f"print({TRAINED}, _tpu.status)")
    assert cell.printed == (
        "tpu_magics: the background run 'ticking' has ended; its results are in the notebook.\nTrue done\n"
    )
    assert notebook.run("1").good().printed == ""


def test_statements_come_home_too(notebook: Kernel) -> None:
    notebook.run("%%tpu_train --background\nloss = train(model)\ntime.sleep(0.2)").good()
    assert notebook.run("loss").error_type == "NameError"
    assert "its results are in the notebook" in told_of_the_end(notebook, "1").printed
    assert notebook.value("loss > 0")


def test_a_failure_is_told_before_the_next_cell(notebook: Kernel) -> None:
    notebook.run("%%tpu_train model --background\ndef broken(model):\n    time.sleep(0.3)\n    boom\n").good()
    cell = told_of_the_end(notebook, "print('still runs')")
    assert "tpu_magics: the background run 'broken' failed." in cell.printed
    assert "NameError: name 'boom' is not defined" in cell.printed and cell.printed.endswith("still runs\n")
    assert "line 4, in broken" in " ".join(cell.printed.split())
    again = notebook.run("_tpu.wait()")
    assert again.error_type == "TrainingFailed" and "boom" in again.said
    assert notebook.value(TRAINED) is False
    notebook.run("%tpu_train train model").good()


def test_a_second_run_is_refused_by_name(notebook: Kernel) -> None:
    notebook.run(FOREVER).good()
    for cell in ("%tpu_train train model", "%%tpu_train --background\ntrain(model)"):
        refused = notebook.run(cell)
        assert refused.said.startswith("TpuMagicsError: The run 'ticking' is still running"), refused.shown
        assert "%tpu_stop ticking" in refused.said and "_tpu.wait()" in refused.said
    assert notebook.value("_tpu.run.name") == "ticking"


def test_looking_and_stopping_meanwhile(notebook: Kernel) -> None:
    notebook.run(FOREVER).good()
    pids = [process.pid for process in notebook.descendants()]
    notebook.run("time.sleep(0.5)").good()
    table = notebook.run("%tpu_runs").good().displays[0]["text/plain"]
    [row] = [line for line in table.splitlines() if "ticking" in line]
    assert "running" in row
    assert "tick 1\n" in notebook.run("%tpu_logs ticking").good().printed
    refused = notebook.run("%tpu_stop train")
    assert "is not the active run" in refused.said and "%tpu_stop ticking" in refused.said
    stop = notebook.run("%tpu_stop ticking").good()
    assert "tpu_magics: 'ticking' was stopped; the notebook's models are unchanged." in stop.printed
    assert stop.seconds < 5 and pids and ended(notebook)
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("interrupted", False)
    assert notebook.run("_tpu.wait()").error_type == "TrainingInterrupted"
    assert "train: done" in notebook.run("%tpu_train train model").good().printed


def test_stopping_a_run_that_has_just_ended_brings_it_home(notebook: Kernel) -> None:
    """It ends in the very cell that stops it, so that nothing has brought it home before."""
    cell = notebook.run(
        """get_ipython().run_cell_magic("tpu_train", "--background", "def quick():\\n    return 4\\n")
from tpu_magics.launch import session
while not session.current.active_run.ended:
    time.sleep(0.05)
%tpu_stop
print(_tpu.value)
"""
    ).good()
    assert "tpu_magics: 'quick' had ended already; its results are in the notebook.\n4\n" in cell.printed


def test_an_interrupt_of_another_cell_does_not_hurt_it(notebook: Kernel) -> None:
    notebook.run(TICKS.format(ticks=60)).good()
    [pid] = [process.pid for process in notebook.workers()]
    other = notebook.send("print('begun')\n" + SLEEPING)
    notebook.wait_for(other, "begun")
    notebook.interrupt()
    assert notebook.finish(other).error_type == "KeyboardInterrupt"
    waiting = notebook.send("print('waiting', flush=True); _tpu.wait()")
    notebook.wait_for(waiting, "waiting")
    time.sleep(0.3)
    notebook.interrupt()
    assert notebook.finish(waiting).error_type == "KeyboardInterrupt", "an interrupt ends the waiting, not the run"
    assert [process.pid for process in notebook.workers()] == [pid]
    notebook.run("_tpu.wait()").good()
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("done", True)


def test_other_cells_may_use_the_model_and_the_cores_meanwhile(notebook: Kernel) -> None:
    notebook.run(TICKS.format(ticks=5)).good()
    notebook.run("y = model(torch.ones(1, 8)); y.sum().backward(); model.zero_grad()").good()
    notebook.run("_tpu.wait()").good()
    assert notebook.value(TRAINED)


def test_bars_and_displays_of_a_background_run_are_text(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train --background
from tqdm.auto import tqdm
from IPython.display import HTML, display
def bars():
    for _ in tqdm(range(5), desc="bar"):
        time.sleep(0.05)
    display(HTML("<b>bold</b>"))
"""
    ).good()
    notebook.run("_tpu.wait()").good()
    notebook.wait_until(lambda: "HTML object" in shown_in(notebook, cell), 5)
    lines = shown_in(notebook, cell).splitlines()
    assert [line.split("|")[0].strip() for line in lines] == [
        "[bars]",
        "bar: 100%",
        "<IPython.core.display.HTML object>",
    ]


def test_the_records_tell_when_it_ended_not_when_it_was_fetched(notebook: Kernel) -> None:
    notebook.run(TICKS.format(ticks=2)).good()
    notebook.wait_until(lambda: ended(notebook))
    noted = time.time()
    time.sleep(1)
    notebook.run("_tpu.wait()").good()
    assert notebook.value("_tpu.run.info['ended']") <= noted
    assert notebook.value("_tpu.run.info['ended'] - _tpu.run.info['created'] >= _tpu.run.info['seconds'] > 0")
