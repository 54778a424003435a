"""Rank 0's output in the cell: live, in order, displays and progress bars too, and never through the kernel's comms."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tpu_magics.panel.protocol import PROTOCOL

from .kernel import Kernel, without_colours
from .samples import MODEL, TRAIN

pytestmark = pytest.mark.process


def test_prints_arrive_while_the_cell_runs(kernel: Kernel) -> None:
    cell = kernel.send(
        """%%tpu_train
def ticks():
    import time
    for i in range(6):
        print("tick", i)
        time.sleep(0.3)
"""
    )
    kernel.wait_for(cell, "tick 1")
    assert cell.count is None, "the cell has ended before its second line was seen"
    kernel.finish(cell).good()
    ticks = [output for output in cell.of("stream") if "tick" in output.text]
    assert len(ticks) >= 4, "the prints came in one piece"
    assert [output.at for output in ticks] == sorted(output.at for output in ticks)
    assert ticks[-1].at - ticks[0].at > 0.8
    assert cell.printed.startswith("".join(f"tick {i}\n" for i in range(6)))


def test_text_displays_and_figures_come_in_their_order(kernel: Kernel) -> None:
    cell = kernel.run(
        """%%tpu_train
import matplotlib.pyplot as plt
from IPython.display import HTML, display, update_display
def shows():
    print("one", end="")
    display(HTML("<b>bold</b>"))
    print("two")
    plt.plot([1, 2])
    plt.show()
    print("three")
    display("old", display_id="the-id")
    update_display("new", display_id="the-id")
    print("four")
    plt.plot([1, 2, 3])
"""
    ).good()
    kinds = [(o.kind, o.text if o.kind == "stream" else sorted(o.content["data"])) for o in cell.outputs]
    shown = [
        ("stream", "one"),
        ("display_data", ["text/html", "text/plain"]),
        ("stream", "two\n"),
        ("display_data", ["image/png", "text/plain"]),
        ("stream", "three\n"),
        ("display_data", ["text/plain"]),
        ("update_display_data", ["text/plain"]),
        ("stream", "four\n"),
        ("display_data", ["image/png", "text/plain"]),
    ]
    assert kinds[: len(shown)] == shown
    assert all(kind == "stream" for kind, _ in kinds[len(shown) :]), "the last line, whose end may come by itself"
    assert cell.outputs[1].content["data"]["text/html"] == "<b>bold</b>"
    old, new = cell.outputs[5:7]
    assert (old.text, new.text, old.display_id, new.display_id) == ("'old'", "'new'", "the-id", "the-id")


def test_clear_output_clears_the_cell(kernel: Kernel) -> None:
    cell = kernel.run(
        """%%tpu_train
from IPython.display import clear_output
def clears():
    print("gone")
    clear_output(wait=True)
    print("stays")
"""
    ).good()
    kinds = [o.kind for o in cell.outputs]
    assert kinds[:3] == ["stream", "clear_output", "stream"]
    assert set(kinds[3:]) == {"stream"}, "the last line, whose end may come by itself"
    assert cell.outputs[1].content == {"wait": True} and cell.outputs[2].text == "stays\n"


def test_progress_bars_are_text_that_moves_and_no_comm_is_opened(kernel: Kernel) -> None:
    """The classes were imported, and a bar was shown as a widget, in the notebook before; one is new in the worker."""
    kernel.run(
        "from tqdm.auto import tqdm, trange\nfrom tqdm.notebook import tqdm as widget_bar\nlist(tqdm([1]))"
    ).good()
    before = len(kernel.messages)
    cell = kernel.run(
        """%%tpu_train --plain
def bars():
    import time
    import tqdm.notebook as notebook
    for name, bar in (("auto", tqdm), ("widget", widget_bar), ("worker", notebook.tqdm)):
        for _ in bar(range(4), desc=name):
            time.sleep(0.15)
    with trange(3, desc="by hand") as bar:
        bar.set_postfix(loss=0.5)
        bar.update(3)
        bar.colour = "green"
"""
    ).good()
    for name in ("auto", "widget", "worker"):
        moved = {output.at for output in cell.of("stream") if f"{name}:" in output.text and "%|" in output.text}
        assert len(moved) >= 3, f"the bar {name!r} did not move"
        assert f"{name}: 100%|██████████| 4/4" in cell.printed
    assert "by hand: 100%|" in cell.printed and "loss=0.5" in cell.printed
    comms = [message for message in kernel.messages[before:] if message["msg_type"].startswith("comm")]
    assert all(one["content"]["data"].get("protocol") == PROTOCOL for one in comms)  # the JupyterLab extension's own
    assert "comm_open" not in {one["msg_type"] for one in comms} and not cell.displays


def test_every_way_to_print_is_caught(kernel: Kernel) -> None:
    kernel.run(
        """
import ctypes, logging, os, subprocess, sys, warnings
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler(sys.stderr))
early.propagate = False
held = sys.stdout
"""
    ).good()
    cell = kernel.run(
        """%%tpu_train
def prints():
    print("print")
    print("to stderr", file=sys.stderr)
    held.write("held\\n")
    sys.__stdout__.write("dunder\\n")
    early.warning("handler of the notebook")
    late = logging.getLogger("late")
    late.addHandler(logging.StreamHandler())
    late.propagate = False
    late.error("handler of the worker")
    warnings.warn("a warning")
    ctypes.CDLL(None).puts(b"from C, buffered")
    ctypes.CDLL(None).fflush(None)
    os.write(2, b"descriptor\\n")
    subprocess.run(["echo", "a command"])
    !echo shell
    print("\\u00e9\\u4e16" * 3, flush=True)
    return sys.stdout.fileno(), sys.stdin.read()
"""
    ).good()
    wanted = [
        "print", "to stderr", "held", "dunder", "handler of the notebook", "handler of the worker", "a warning",
        "from C, buffered", "descriptor", "a command", "shell", "\u00e9\u4e16" * 3,
    ]  # fmt: skip
    found = [cell.printed.find(text) for text in wanted]
    assert -1 not in found, wanted[found.index(-1)]
    assert found == sorted(found)
    assert kernel.value("_tpu.value") == (1, "")


def test_text_of_the_notebook_is_not_shown_twice(kernel: Kernel) -> None:
    cell = kernel.run(
        """%%tpu_train
import ctypes, sys
sys.stdout.write("unflushed ")
ctypes.CDLL(None).printf(b"from C ")
def f():
    print("in the worker")
"""
    ).good()
    assert cell.printed.count("unflushed") == 1 and cell.printed.count("in the worker") == 1
    assert cell.printed.count("from C") <= 1


def test_a_display_that_is_too_large_becomes_a_note(kernel: Kernel) -> None:
    cell = kernel.run(
        """%%tpu_train
def large():
    from IPython.display import display
    display({"text/plain": "a table", "text/html": "x" * 6_000_000}, raw=True)
"""
    ).good()
    [data] = cell.displays
    assert data == {"text/plain": "a table\n[not shown: this display is 6.0 MB, the limit is 5.2 MB]"}


def test_much_output_is_complete(kernel: Kernel) -> None:
    cell = kernel.run("%%tpu_train\ndef much():\n    for i in range(20_000):\n        print(i, 'x' * 40)\n").good()
    lines = [line for line in cell.printed.splitlines() if not line.startswith("tpu_magics")]
    assert lines == [f"{i} {'x' * 40}" for i in range(20_000)]


def test_a_command_that_empties_the_log_does_not_silence_the_rest(kernel: Kernel) -> None:
    """`> /dev/stderr` truncates the file that stands behind it."""
    cell = kernel.run(
        """%%tpu_train
def f():
    import os, time
    print("x" * 1000)
    time.sleep(0.3)
    os.system("echo from the command > /dev/stderr")
    print("after it")
"""
    ).good()
    assert "from the command\nafter it\n" in cell.printed


def test_only_rank_0_is_in_the_cell(kernel: Kernel) -> None:
    """Two workers, as the launcher takes them; their output stands in their logs."""
    cell = kernel.run(
        """
from tpu_magics.launch import train
from tpu_magics.launch.options import Options
from IPython.display import display
import os
def talks():
    me = f"process {os.getpid()}"
    print("said by", me)
    display("shown by " + me)
    return me
"""
    ).good()
    cell = kernel.run("result = train.start(train.function_request(talks), Options(), workers=2)").good()
    first, second = kernel.value("result.values")
    assert f"said by {first}" in cell.printed and second not in cell.shown
    assert [data["text/plain"] for data in cell.displays] == [f"'shown by {first}'"]
    log = kernel.run("%tpu_logs -r 1").good().printed
    assert f"said by {second}" in log and f"shown by {second}" in log and first not in log


def test_input_and_debuggers_end_in_a_clear_error(kernel: Kernel) -> None:
    for call in ("input('name?')", "breakpoint()", "import pdb; pdb.set_trace()", "import getpass; getpass.getpass()"):
        began = time.monotonic()
        cell = kernel.run(f"%%tpu_train\ndef asks():\n    {call}\n")
        assert cell.error_type == "TrainingFailed" and "What to do: " in cell.error
        assert "keyboard" in cell.said or "cannot read input" in cell.said
        assert time.monotonic() - began < 30


def test_values_and_logs_of_a_run_that_streams(kernel: Kernel, tmp_path: Path) -> None:
    """The log on disk is what was shown, and no descriptor of the notebook stays open for it."""
    kernel.run(MODEL + TRAIN).good()
    kernel.run("%tpu_train train model").good()
    before = psutil.Process(kernel.pid).num_fds()
    for _ in range(3):
        kernel.run("%%tpu_train model\ndef f(model):\n    print('kept')\n    return train(model)").good()
    assert psutil.Process(kernel.pid).num_fds() <= before
    logs = sorted((tmp_path / ".tpu_runs").glob("*-f*/rank-0.log"))
    assert [log.read_text() for log in logs] == ["kept\n"] * 3
    assert kernel.run("%tpu_logs").good().printed.strip() == "kept"


def test_a_traceback_that_a_magic_shows_is_printed(kernel: Kernel) -> None:
    """`%run` and, in IPython 7.34, `%%time` show an exception and go on."""
    kernel.run("%%writefile broken.py\nmissing").good()
    cell = kernel.run("%%tpu_train\ndef runs():\n    %run broken.py\n    print('goes on')\n").good()
    assert "NameError" in cell.printed and "name 'missing' is not defined" in without_colours(cell.printed)
    assert "goes on\n" in cell.printed
    cell = kernel.run("%%tpu_train\n%%time\nprint('timed')\nmissing")
    assert "timed" in cell.printed and "name 'missing' is not defined" in without_colours(cell.shown)


def test_capture_and_time_above_the_magic(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%capture caught\n%%tpu_train\nfrom IPython.display import HTML, display\n"
        "def f():\n    print('text')\n    display(HTML('<b>x</b>'))\n    return 3\n"
    ).good()
    assert cell.shown == ""
    assert kernel.value("(caught.stdout.splitlines()[0], len(caught.outputs), _tpu.value)") == ("text", 1, 3)
    cell = kernel.run("%%time\n%%tpu_train\ndef f():\n    print('text')").good()
    assert cell.printed.startswith("text\n") and "Wall time" in cell.printed
