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

from tests.preflight.conftest import tpu_compiler  # noqa: F401

from .kernel import kernel_environment, python, without_colours
from .samples import MODEL, TRAIN

pytestmark = pytest.mark.process

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for number, cell in enumerate({cells!r}, start=1):
    print(f"== {{number}}", flush=True)
    shell.run_cell(cell, store_history=True)
"""
CELLS = [
    "%load_ext tpu_magics",
    "%tpu_pad [3, 4, 5, 60] --batch 2\nimport sys; print({'torch', 'numpy'} & set(sys.modules))",
    "%tpu_doctor",
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
    "import tpu_magics.launch.session as s\nwhile not s.current.active_run.ended: time.sleep(0.05)",
    "%tpu_logs",
    "%tpu_runs nowhere",
    "%%tpu_train model\ndef forever(model):\n    import time\n    print('started')\n    time.sleep(1000)\n",
    "%tpu_train train model",
    """%%tpu_train model
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
""",
    "%tpu_check",
    "%tpu_preflight train model --target v5e-1",
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What each cell prints, by its number, in one shell. It gets a Ctrl-C while it trains for ever: a terminal sends
    SIGINT to the whole foreground process group."""
    folder = tmp_path_factory.mktemp("shell")
    shell = subprocess.Popen(
        [sys.executable, "-c", SHELL.format(cells=CELLS)],
        cwd=folder,
        env=kernel_environment({"IPYTHONDIR": str(folder / "ipython"), "XDG_CACHE_HOME": str(folder / "cache")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        text = ""
        for line in shell.stdout:
            text += line
            if line == "started\n":
                began = time.monotonic()
                os.killpg(shell.pid, signal.SIGINT)
            elif line == "== 16\n":
                assert time.monotonic() - began < 5
        assert shell.wait(30) == 0, text
    finally:
        shell.kill()
        shell.wait()
    parts = re.split(r"(?m)^== (?=\d+$)", without_colours(text))[1:]
    return {int(part.partition("\n")[0]): part.partition("\n")[2] for part in parts}


def test_everything_prints_as_text(said: dict[int, str]) -> None:
    assert said[2].startswith("Padding of the list: 4 samples, 3 to 60 tokens, 4 different lengths\n")
    assert said[2].endswith("\nset()\n"), "a framework is imported for it"
    assert "Environment variables" in said[3] and " checks: " in said[3]
    assert "XLA:CPU rehearsal" in said[4] and "<" not in said[4]
    assert said[6].startswith("one\n<IPython.core.display.HTML object>\n") and "bar: 100%" in said[6]
    assert "training_function: done, 1 rank on XLA:CPU, 6 steps in " in said[6]
    assert "broken rule" not in said[6]
    assert "updated in the notebook: model" in said[6]
    assert said[7] == "7 False\n"
    assert "NameError: name 'boom' is not defined" in said[8] and "(In [8], line 4, in broken)" in said[8]
    assert "Traceback" not in said[8]
    assert "training_function" in said[9] and "failed" in said[9]
    assert said[10].startswith("one\n")
    assert "Its output goes to its log: %tpu_logs" in said[11] and "quiet" not in said[11] + said[12]
    assert said[13].startswith(
        "tpu_magics: the background run 'waits' has ended; its results are in the notebook.\nquiet\n"
    )
    assert said[14].startswith("TpuMagicsError: ") and "nowhere" in said[14]


def test_the_command_ipython_loads_it_and_helps(tmp_path: Path) -> None:
    code = "%load_ext tpu_magics\n%tpu_train -h\n%tpu_runs\n%tpu_logs -h\n%tpu_stop -h"
    said = python(
        f"import sys; sys.argv[1:] = ['-c', {code!r}]\nfrom IPython import start_ipython\nstart_ipython()", tmp_path
    )
    for magic in ("%tpu_train", "%tpu_logs", "%tpu_stop"):
        assert f"usage: {magic}" in said


def test_ctrl_c_ends_the_run_and_the_next_cell_trains(said: dict[int, str]) -> None:
    assert "started\nTrainingInterrupted: The run was interrupted." in said[15], said[15]
    assert "train: done" in said[16]


def test_without_a_panel_a_line_says_what_the_rules_found(said: dict[int, str]) -> None:
    assert "tpu_magics: 1 broken rule in the code: TPU102. %tpu_panel shows where and why." in said[17]
    assert "In [17], line 11: TPU102" in said[18] and "print(loss.item())" in said[18]


@pytest.mark.usefixtures("tpu_compiler")
def test_a_preflight_prints(said: dict[int, str]) -> None:
    assert "train: tracing for one rank" in said[19] and "v5litepod-1: compiling" in said[19]
    assert "Preflight of train: no step was executed\n" in said[19]
