"""Plain IPython, without a kernel or a front end: everything is text on the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .kernel import kernel_environment, python, without_colours
from .samples import MODEL, TRAIN

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for number, cell in enumerate({cells!r}, start=1):
    print(f"== {{number}}", flush=True)
    shell.run_cell(cell, store_history=True)
"""


def run_cells(folder: Path, *cells: str) -> dict[int, str]:
    """What each cell prints, by its number; %load_ext is the first."""
    text = python(SHELL.format(cells=["%load_ext tpu_magics", *cells]), folder)
    parts = re.split(r"(?m)^== (?=\d+$)", without_colours(text))[1:]
    return {int(part.partition("\n")[0]): part.partition("\n")[2] for part in parts}


@pytest.mark.slow
def test_everything_prints_as_text(tmp_path: Path) -> None:
    said = run_cells(
        tmp_path,
        "%tpu_init",
        MODEL + TRAIN,
        """%%tpu_train model
from IPython.display import HTML, display
from tqdm.auto import tqdm
def training_function(model):
    print("one")
    display(HTML("<b>bold</b>"))
    for _ in tqdm(range(2), desc="bar"):
        train(model)
    return 7
""",
        "print(_tpu.value, torch.equal(model.weight, before))",
        "%%tpu_train model\n\ndef broken(model):\n    boom\n",
        "%tpu_runs",
        "%tpu_logs training_function",
        "%%tpu_train --background\nimport time\ndef waits():\n    print('quiet')\n    time.sleep(0.2)\n",
        "time.sleep(3)",
        "%tpu_logs",
        "%tpu_runs nowhere",
    )
    assert "XLA:CPU rehearsal" in said[2] and "<" not in said[2]
    assert said[4].startswith("one\n<IPython.core.display.HTML object>\n") and "bar: 100%" in said[4]
    assert "training_function: done, 1 rank on XLA:CPU, 6 steps in " in said[4]
    assert "broken rule" not in said[4]
    assert "trained weights are home: model" in said[4]
    assert said[5] == "7 False\n"
    assert "NameError: name 'boom' is not defined" in said[6] and "(In [6], line 4, in broken)" in said[6]
    assert "Traceback" not in said[6]
    assert "training_function" in said[7] and "failed" in said[7]
    assert said[8].startswith("one\n")
    assert "What it prints goes to its log: %tpu_logs" in said[9] and "quiet" not in said[9] + said[10]
    assert said[11].startswith("tpu_magics: the background run 'waits' has ended, and its results are home.\nquiet\n")
    assert said[12].startswith("TpuMagicsError: ") and "nowhere" in said[12]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the whole foreground process group."""
    cells = [
        "%load_ext tpu_magics",
        MODEL + TRAIN,
        "%%tpu_train model\ndef forever(model):\n    import time\n    print('started')\n    time.sleep(1000)\n",
        "%tpu_train train model",
    ]
    shell = subprocess.Popen(
        [sys.executable, "-c", SHELL.format(cells=cells)],
        cwd=tmp_path,
        env=kernel_environment({}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        for line in shell.stdout:
            if line == "started\n":
                break
        began = time.monotonic()
        os.killpg(shell.pid, signal.SIGINT)
        said = ""
        for line in shell.stdout:
            said += line
            if line == "== 4\n":
                break
        assert time.monotonic() - began < 5
        assert said.startswith("TrainingInterrupted: The run was interrupted."), said
        assert "train: done" in shell.stdout.read()
        assert shell.wait(30) == 0
    finally:
        shell.kill()
        shell.stdout.close()
        shell.wait()


def test_the_command_ipython_loads_it_and_helps(tmp_path: Path) -> None:
    code = "%load_ext tpu_magics\n%tpu_train -h\n%tpu_runs\n%tpu_logs -h\n%tpu_stop -h"
    said = python(
        f"import sys; sys.argv[1:] = ['-c', {code!r}]\nfrom IPython import start_ipython\nstart_ipython()", tmp_path
    )
    for magic in ("%tpu_train", "%tpu_logs", "%tpu_stop"):
        assert f"usage: {magic}" in said


@pytest.mark.slow
def test_without_a_panel_a_line_says_what_the_rules_found(tmp_path: Path) -> None:
    train = """%%tpu_train model
def training_function(model):
    import torch_xla
    model.to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        loss = model(torch.ones(4, 8).to(torch_xla.device())).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        print(loss.item())
"""
    said = run_cells(tmp_path, MODEL, train, "%tpu_check")
    assert "tpu_magics: 1 broken rule in the code: TPU102. %tpu_check shows where and why." in said[3]
    assert "In [3], line 11: TPU102" in said[4] and "print(loss.item())" in said[4]
