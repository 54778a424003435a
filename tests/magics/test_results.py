"""The result of a run in a notebook, and what leaves it: DataFrames, event files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.panel.event_files import read_back

from .kernel import Kernel
from .samples import MODEL, TRAIN

pytestmark = pytest.mark.process

LOGGING = """%%tpu_train model --tensorboard tb {options}
import os, time, tpu_magics
def logging(model):
    for step in range(6):
        tpu_magics.log(loss=train(model, 1))
        while step == 3 and {until!r} and not os.path.exists({until!r}):
            time.sleep(0.05)
"""


def test_a_result_shows_what_came_of_the_run(kernel: Kernel) -> None:
    kernel.run(MODEL + TRAIN).good()
    kernel.run(LOGGING.format(options="--run-name '<b>'", until="")).good()
    [shown] = kernel.run("_tpu").good().of("execute_result")
    text, html = shown.content["data"]["text/plain"], shown.content["data"]["text/html"]
    assert text.startswith("<TrainResult '<b>': done, 6 steps") and ", loss " in text
    assert text.endswith("updated in the notebook: model; see %tpu_panel <b>>")
    assert "&lt;b&gt;</b> · ✓ done" in html and "<b><b>" not in html
    for part in (
        "Steps <b>6</b>",
        "Compiles <b>",
        "loss <b>",
        "<svg",
        "updated in the notebook: model",
        ".to_pandas()",
    ):
        assert part in html, part
    kernel.run("%unload_ext tpu_magics").good()
    [plain] = kernel.run("_tpu").good().of("execute_result")
    assert set(plain.content["data"]) == {"text/plain"}
    kernel.run("%load_ext tpu_magics").good()


def test_values_are_in_the_folder_while_the_run_goes_on(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(MODEL + TRAIN).good()
    started = kernel.run(LOGGING.format(options="--background --run-name going", until="seen")).good()
    assert "tpu_magics: TensorBoard shows this run with: tensorboard --logdir tb" in started.printed
    kernel.wait_until(lambda: any((tmp_path / "tb").glob("*-going")))
    [folder] = (tmp_path / "tb").iterdir()
    kernel.wait_until(lambda: len(read_back(folder).get("loss", ())) >= 3)
    assert kernel.value("_tpu.status") == "running", "it is written only at the end"
    (tmp_path / "seen").touch()
    kernel.run("_tpu.wait()").good()
    found = read_back(folder)
    losses = kernel.value("[float(each) for each in _tpu.to_pandas().values.loss]")
    assert [value for _step, _time, value in found["loss"]] == pytest.approx(losses) and len(losses) == 6
    assert found["tpu_magics/compiles"][-1][2] == kernel.value("_tpu.compiles")
    assert "| status |" not in found["tpu_magics/run/text_summary"][0][2]
    again = kernel.run("import tpu_magics; tpu_magics.to_tensorboard('going', 'tb')")
    assert again.error_type == "TpuMagicsError" and "is in" in again.said


def test_a_folder_that_cannot_be_used_stops_before_anything_runs(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(MODEL + TRAIN).good()
    refused = kernel.run("%tpu_train train model --tensorboard gs://bucket")
    assert refused.error_type == "TpuMagicsError" and "Event files cannot be written to 'gs://bucket'." in refused.said
    assert not (tmp_path / ".tpu_runs").exists()
    called = kernel.run(
        "import tpu_magics; result = tpu_magics.train(train, model, tensorboard='tb', plain=True)"
    ).good()
    assert "TensorBoard" not in called.printed and len(list((tmp_path / "tb").iterdir())) == 1
    assert kernel.value("'tensorboard' in tpu_magics.train.__doc__ and 'observe' not in tpu_magics.train.__doc__")
