"""`%tpu_init` in a real kernel: one table, and a runtime that stays down; and what is said where it is up."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from .kernel import Kernel
from .samples import FORK, MODEL, TRAIN

pytestmark = pytest.mark.process

DOWN = "torch_xla._XLAC._xla_runtime_is_initialized()"


def test_the_table_is_text_and_html_and_the_runtime_stays_down(module_kernel: Kernel) -> None:
    cell = module_kernel.run("%tpu_init").good()
    [table] = cell.displays
    assert "XLA:CPU rehearsal" in table["text/plain"] and "PJRT_DEVICE=CPU" in table["text/plain"]
    assert table["text/html"].startswith("<div") and f"torch_xla {version('torch_xla')}" in table["text/html"]
    module_kernel.run("import os, torch_xla").good()
    assert module_kernel.value(DOWN) is False
    assert module_kernel.value("os.environ['PJRT_DEVICE']") == "CPU"
    assert "it was not set" not in module_kernel.run("%tpu_init").good().displays[0]["text/plain"]


def test_seeds_and_training_arguments_leave_the_runtime_down(kernel: Kernel) -> None:
    kernel.run("%tpu_init").good()
    kernel.run("import random, torch, torch_xla, accelerate.utils; accelerate.utils.set_seed(42)").good()
    assert kernel.value("random.random()") == 0.6394267984578837  # of random.seed(42): the harmless half is done
    kernel.run("from transformers import TrainingArguments; a = TrainingArguments('out')").good()
    assert kernel.value(DOWN) is False
    kernel.run("%%tpu_train\ndef nothing():\n    import torch_xla\n    print(torch_xla.device())").good()
    assert kernel.value(DOWN) is False


def test_the_defaults_hold_for_the_runs_after(kernel: Kernel) -> None:
    kernel.run("%tpu_init --precision bf16 -n 1").good()
    cell = kernel.run("%%tpu_train\ndef precision():\n    import os\n    return os.environ.get('XLA_USE_BF16')").good()
    assert "precision: done" in cell.printed
    assert kernel.value("_tpu.value") == "1"
    kernel.run("%tpu_init").good()
    kernel.run("%tpu_train precision").good()
    assert kernel.value("_tpu.value") is None


def test_options_are_checked_before_anything_is_looked_at(kernel: Kernel) -> None:
    cell = kernel.run("%tpu_init --precision fp16")
    assert "fp16" in cell.error and "bf16-downcast" in cell.error
    cell = kernel.run("%tpu_init -n 0")
    assert "-n 0 is not valid" in cell.error
    cell = kernel.run("%tpu_init --cache /proc/none")
    assert cell.error.startswith("TpuMagicsError: The compile cache cannot be written to /proc/none")


def test_the_cache_says_why_it_is_off_here(kernel: Kernel, tmp_path: Path) -> None:
    cell = kernel.run(f"%tpu_init --cache {tmp_path / 'programs'}").good()
    assert f"the persistent compile cache ({tmp_path / 'programs'}) is off here: on XLA:CPU" in cell.printed
    kernel.run("%tpu_init").good()
    kernel.run("import tpu_magics.launch.session as s; assert s.current.cache").good()
    assert "is off here" not in kernel.run("%tpu_init --cache off").good().printed
    kernel.run("assert not s.current.cache").good()


# -- a runtime that is up ---------------------------------------------------------------------------------------------


def test_the_cells_that_started_the_runtime_and_built_an_accelerator_are_named(module_kernel: Kernel) -> None:
    module_kernel.run(MODEL + TRAIN + FORK).good()
    guilty = module_kernel.run("import torch_xla; torch_xla.device()").good().count
    as_on_a_tpu = "from tpu_magics.launch.strategies.forked import ForkedStrategy; ForkedStrategy.can_spawn = False"
    module_kernel.run(as_on_a_tpu).good()
    cell = module_kernel.run("%tpu_train train model")
    assert cell.error_type == "TpuMagicsError" and "FORKED" not in cell.shown
    assert f"The XLA runtime is already initialized in this notebook, by In [{guilty}], line 1: " in cell.said
    assert "Restart the kernel" in cell.said

    guilty = module_kernel.run("from accelerate import Accelerator; a = Accelerator()").good().count
    cell = module_kernel.run("%tpu_train train model")
    assert cell.error_type == "TpuMagicsError" and "FORKED" not in cell.shown
    assert f"An Accelerator was created in this notebook, by In [{guilty}]." in cell.said
    # With an Accelerator, torch 2.8 starts the processes in which torch.compile would compile.
    started = [" ".join(one.cmdline()) for one in module_kernel.descendants()]
    assert [one for one in started if "torch/_inductor/compile_worker" not in one] == []


def test_the_doctor_sees_it(module_kernel: Kernel) -> None:
    module_kernel.run("import torch_xla; torch_xla.device()").good()
    told = json.loads(module_kernel.run("%tpu_doctor --json").good().printed)
    [runtime] = [check for check in told["checks"] if check["name"] == "This notebook's runtime"]
    assert (runtime["state"], runtime["command"]) == ("broken", "")
    assert runtime["then"].startswith("restart the kernel")
