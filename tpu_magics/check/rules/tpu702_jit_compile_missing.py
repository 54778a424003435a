"""A rehearsal of a Keras model without XLA.

What it does
    Recommends `jit_compile=True` for Keras models that are compiled and trained without it, in a program that creates
    no distribution strategy but mentions TPUs. `%%tpu_train` sets it automatically, and nothing is reported there.
    Advice is shown but does not make a check fail.
Why this is bad
    The rehearsal on a CPU or GPU should show how XLA compiles the model: operations that it cannot compile, and a new
    compile for each new shape. Without `jit_compile=True` Keras runs the model on a CPU without XLA.
Example
    model.compile(optimizer="adam", loss="mse")  # without a TPU
Use instead
    model.compile(optimizer="adam", loss="mse", jit_compile=True)
Limitations
    The purpose of a program that never mentions a TPU is unknown, and so is a model that Keras itself compiles on a GPU
    (`jit_compile="auto"`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.values import MODEL

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram

CODE = "TPU702"
NAME = "jit-compile-missing"
GROUP = "tensorflow"
WHY = "Without jit_compile=True a CPU runs the model without XLA: the rehearsal does not show what fails on a TPU."

_TPU = re.compile(r"(?<![a-z])(tpus?)(?![a-z0-9])", re.IGNORECASE)
_BY_NAME = re.compile(r"TPU(ClusterResolver|Strategy|DistributionStrategy|Estimator)")  # also of TensorFlow 1
_FITS = ("fit", "train_on_batch", "fit_generator")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    compiles = [call for call in program.methods("compile", MODEL) if call.receiver.lib == "tf"]
    if not compiles or program.looks_for_tpu or _is_distributed(program) or not _mentions_tpus(program):
        return
    if any(cell.magic == "tpu_train" for cell in program.cells):  # sets it, and removes it on a TPU
        return
    if any(_says_jit(call) for call in compiles) or not any(program.methods(method) for method in _FITS):
        return
    for call in compiles:
        yield call.ctx.finding(
            call.node,
            f"{call.ctx.source(call.node.func)} is called without jit_compile in a program for a TPU.",
            "Add jit_compile=True for the rehearsal, and remove it on the TPU.",
            advice=True,
        )


def _is_distributed(program: CheckedProgram) -> bool:
    if program.calls("tensorflow.distribute.") or program.methods("scope"):
        return True
    return any(_BY_NAME.search(cell.text) for cell in program.cells)


def _says_jit(call: CallSite) -> bool:
    eager = call.ctx.constant(call.ctx.argument(call.node, "run_eagerly")) is True
    return eager or call.ctx.argument(call.node, "jit_compile") is not None or call.ctx.has_unknown_arguments(call.node)


def _mentions_tpus(program: CheckedProgram) -> bool:
    return any(_TPU.search(cell.text) for cell in program.cells)
