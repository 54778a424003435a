"""TensorFlow cells in a real kernel, whose Python has the overlay: one kernel for all, and no torch in it; and the
JupyterLab extension while TensorFlow trains in the kernel's own main thread, which answers nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import overlay

from .conftest import Kernels, as_new
from .front import Front, put_together
from .kernel import EITHER_TENSORFLOW, LOAD, Kernel, running_kernel, with_tensorflow

pytestmark = pytest.mark.process
BUILD = """
import keras, numpy as np
keras.utils.set_random_seed(0)
x, y = np.random.rand(64, 8).astype("float32"), np.random.randint(0, 4, 64)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
def state():
    return [v.numpy().tolist() for v in (*model.variables, *model.optimizer.variables)]
before = state()
"""
# It says so when it trains: while TensorFlow traces, an interrupt may have to be sent again (docs/tensorflow.md).
ENDLESS = """%%tpu_train --jit keep
begun = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: print("begun") if epoch == 3 else None)
model.fit(x, y, epochs=10**6, verbose=0, callbacks=[begun])
"""


@pytest.fixture(params=EITHER_TENSORFLOW)
def either(request: pytest.FixtureRequest, kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    with as_new(kernels(request.param), tmp_path) as kernel:
        yield kernel


@pytest.fixture
def kernel(kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    with as_new(kernels("tensorflow"), tmp_path) as kernel:
        yield kernel


def test_a_cell_that_imports_tensorflow_trains_without_init(kernel: Kernel) -> None:
    """The first of this module: nothing is imported yet."""
    assert kernel.value("'tensorflow' in __import__('sys').modules") is False
    text = BUILD.replace("import keras, numpy as np", "import tensorflow as tf\nimport keras, numpy as np")
    cell = kernel.run(f"%%tpu_train{text}history = model.fit(x, y, verbose=0)\nprint('trained')\nlen(history.history)")
    cell.good()
    assert cell.printed.startswith("tpu_magics: No TPU") and "trained\n" in cell.printed
    assert cell.of("display_data", "execute_result", "stream")[-1].text.startswith("tpu_magics: cell: done")
    assert kernel.value("(_tpu.status, list(_tpu.models), before == state(), 'strategy' in globals())") == (
        "done",
        ["model"],
        False,
        True,
    )
    assert kernel.run("%tpu_logs").good().printed == "trained\n\n" and "cell" in kernel.run("%tpu_runs").shown


def test_init_shows_the_strategy_and_gives_it_to_the_notebook(kernel: Kernel) -> None:
    cell = kernel.run("%tpu_init --framework tensorflow").good()
    [table] = cell.displays
    text = table["text/plain"]
    assert (
        "Strategy" in text
        and "Replicas" in text
        and f"tensorflow-cpu {overlay.tensorflow_version()}" in text
        and "PJRT_DEVICE" not in text
    )
    assert kernel.value("type(strategy).__name__") == "_DefaultDistributionStrategy"
    assert "-n 2 is not supported for TensorFlow" in kernel.run("%tpu_init -n 2").said
    padded = kernel.run("%tpu_pad [3, 5, 9, 9] --batch 2 --plain").good().printed
    assert "dataset.padded_batch(2, " in padded or "dataset.bucket_by_sequence_length(" in padded


def test_the_panel_is_live_while_the_cell_holds_the_main_thread(kernel: Kernel) -> None:
    kernel.run(BUILD).good()
    cell = kernel.send(
        "%%tpu_train\nimport time\nfor n in range(6):\n    model.fit(x, y, verbose=0)\n    time.sleep(0.5)"
    )
    kernel.finish(cell).good()
    first, *_, last = cell.panel
    assert first.kind == "display_data" and "application/vnd.jupyter.widget-view+json" in first.content["data"]
    assert last.kind == "update_display_data" and "Steps" in last.text and "done" in last.text
    assert len([one for one in cell.comms if one.kind == "comm_msg"]) > 5  # the widgets were updated meanwhile
    assert "cell: done; updated in the notebook: model" in cell.printed


def test_functions_scripts_and_refusals(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(BUILD).good()
    kernel.run("def train(model, epochs):\n    return model.fit(x, y, epochs=epochs, verbose=0).epoch").good()
    kernel.run("%tpu_train --jit keep train model epochs=2").good()
    assert kernel.value("(_tpu.value, _tpu.steps)") == ([0, 1], 4)
    wrong = kernel.run("import tpu_magics\ntpu_magics.train(train, model, epochs=2)")
    assert "has no option epochs" in wrong.said and "kwargs=dict(epochs=...)" in wrong.said
    (tmp_path / "job.py").write_text("import sys, tensorflow as tf\nprint(sys.argv[1:], tf.__version__)\n")
    assert (
        f"['--epochs', '2'] {overlay.tensorflow_version()}\n"
        in kernel.run("%tpu_train job.py --epochs 2").good().printed
    )
    (tmp_path / "job.py").write_text("print('here')\nexit(4)\nprint('went on')\n")
    ended = kernel.run("%tpu_train job.py")
    assert "SystemExit: 4" in ended.error and "went on" not in ended.printed
    forks = kernel.run(
        "%%tpu_train --plain\nimport os, tensorflow as tf\npid = os.fork()\nhere = os.getpid()\n"
        "code = os.waitpid(pid, 0)[1] if pid else None\n"
    ).good()
    assert forks.printed.count("done") == 1 and kernel.value("(here == os.getpid(), code)") == (True, 0)
    assert "--background is not supported" in kernel.run("%%tpu_train --background\nmodel.fit(x, y)").said
    old = kernel.run('%%tpu_train\nmodel.fit(x, y, verbose=0)\nmodel.save_weights("x.h5")')
    assert "Keras 3 does not accept the file name x.h5" in old.said and "steps" not in old.printed
    assert "has no option" not in kernel.run("%%tpu_train -h").good().printed


def test_an_error_of_the_cell_shows_its_lines_and_the_models_are_as_before(kernel: Kernel) -> None:
    kernel.run(BUILD).good()
    cell = kernel.run("%%tpu_train --jit keep\nmodel.fit(x, y, verbose=0)\nraise ValueError('late')")
    assert cell.error_type == "ValueError" and "----> 3 raise ValueError('late')" in cell.error
    assert "launch/strategies/in_process.py" not in cell.error and "models are unchanged" in cell.printed
    assert kernel.value("(before == state(), _tpu.status)") == (True, "failed")
    kernel.run("%%tpu_train --jit keep\nmodel.fit(x, y, verbose=0)").good()
    assert kernel.value("before == state()") is False


def test_an_interrupt_ends_the_run_and_the_kernel_goes_on(either: Kernel) -> None:
    either.run(BUILD).good()
    cell = either.wait_for(either.send(ENDLESS), "begun")
    time.sleep(1.5)
    assert either.stop(cell) < 3.0
    assert cell.error_type == "TrainingInterrupted" and "models are unchanged" in cell.said
    assert either.value("(before == state(), _tpu.status)") == (True, "interrupted")
    cell = either.run("%%tpu_train --jit keep\nprint('more')\nmodel.fit(x, y, verbose=0)").good()
    assert "more\n" in cell.printed and cell.panel[-1].kind == "update_display_data"
    assert either.run("%tpu_logs").good().printed.startswith("more\n")


@pytest.mark.long
def test_the_log_of_tensorflows_c_stays_out_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ipykernel gives it to the cell: what says nothing, or says once more what is raised, with a stack of each op."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it ipykernel leaves the descriptors alone
    with running_kernel(tmp_path, **with_tensorflow()) as kernel:
        kernel.run(LOAD).good()
        first = kernel.run("%tpu_init --framework tensorflow").good()
        assert ".cc:" not in first.shown and "absl::" not in first.shown
        kernel.run(BUILD).good()
        kernel.run(
            "import tensorflow as tf\n@tf.function\ndef step(a):\n    tf.print('a', a)\n"
            "    return model.trainable_variables[0].assign_add(a)"
        ).good()
        refused = kernel.run("%%tpu_train\nstep(tf.zeros([8, 4]))")
        assert "tf.print runs on the host" in refused.said
        assert "OP_REQUIRES" not in refused.shown and "The op is created at" not in refused.shown
        assert "OP_REQUIRES failed" in kernel.run("%tpu_logs").good().printed
        kept = kernel.run("%%tpu_train --jit keep\nfor _ in range(2):\n    step(tf.zeros([8, 4]))").good()
        assert kept.printed.count("a [[0") == 2
        kernel.wait_for(kernel.run("%%tpu_train\nimport os\nos.system('echo from a program >&2')"), "from a program")


def test_an_import_that_would_abort_the_kernel_is_an_error_from_the_extension_on(kernel: Kernel) -> None:
    """Without it: `LLVM ERROR: inconsistency in registered CommandLine options`, and the kernel is gone."""
    kernel.run("import tensorflow").good()
    shown = kernel.run("import torch_xla").shown
    assert "ImportError" in shown and "aborts the kernel" in shown and "Restart the kernel" in shown
    assert kernel.value("1 + 1") == 2


# -- the JupyterLab extension ----------------------------------------------------------------------------------------


def test_it_is_followed_and_can_be_stopped_where_the_kernel_has_subshells(either: Kernel) -> None:
    either.run("%tpu_init --framework tensorflow").good()
    either.run(BUILD).good()
    front = Front(either)
    assert front.greets()["host"]["title"] == "XLA:CPU rehearsal"
    cell = either.wait_for(either.send(ENDLESS), "begun")
    either.wait_until(lambda: len(front.told("update")) > 3)
    hello, run = front.told("hello")[-1], front.told("update")[-1]["run"]
    assert hello["run"] == run and hello["live"]
    if hello["answers"]:
        header = either.subshell()
        opened = front.say("open", header, run=run)
        either.wait_until(lambda: bool(front.answers(opened)), 5)
        assert front.answers(opened)[0]["record"]["live"]
        front.say("stop", header, run=run)
    else:
        put_together(front.told("run", "update"), run)
        either.interrupt()
    began = time.monotonic()
    either.finish(cell, timeout=60)
    assert cell.error_type == "TrainingInterrupted" and time.monotonic() - began < 10
    either.run("1").good()
    last = front.told("run")[-1]["record"]
    assert (last["state"], last["live"]) == ("interrupted", False)
    assert front.greets()["answers"] == hello["answers"], "any cell keeps it from answering, as this one did"


def test_a_plain_run_is_followed(either: Kernel) -> None:
    either.run(BUILD).good()
    front = Front(either)
    front.greets()
    either.run("%%tpu_train --plain --run-name plain\nmodel.fit(x, y, verbose=0)").good()
    either.run("1").good()
    page = front.told("run")[-1]["record"]
    assert (page["name"], page["state"]) == ("plain", "done") and int(page["figures"][0]["value"]) >= 2
