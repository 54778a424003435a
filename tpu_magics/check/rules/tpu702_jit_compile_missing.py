"""A rehearsal of a Keras model without XLA.

What it does
    Advises `jit_compile=True` for Keras models that are compiled and trained without it, in a program that
    makes no distribution strategy and yet speaks of TPUs. `%%tpu_train` puts it on by itself: nothing is said there.
    Advice is shown and fails no check.
Why it is bad
    The rehearsal on a CPU or GPU is to show what XLA makes of the model: operations that it cannot compile, and a new
    compile for each new shape. Without `jit_compile=True` Keras runs the model on a CPU without XLA.
Example
    model.compile(optimizer="adam", loss="mse")  # at home, before the TPU
Use instead
    model.compile(optimizer="adam", loss="mse", jit_compile=True)
What it cannot see
    What a program is for, where it never mentions a TPU; models that Keras compiles by itself on a GPU
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
WHY = "Without jit_compile=True a CPU runs the model without XLA: the rehearsal does not show what a TPU would refuse."

_TPU = re.compile(r"(?<![a-z])(tpus?)(?![a-z0-9])", re.IGNORECASE)
_BY_NAME = re.compile(r"TPU(ClusterResolver|Strategy|DistributionStrategy|Estimator)")  # also of TensorFlow 1
_FITS = ("fit", "train_on_batch", "fit_generator")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    compiles = [call for call in program.methods("compile", MODEL) if call.receiver.lib == "tf"]
    if not compiles or program.looks_for_tpu or _is_distributed(program) or not _speaks_of_tpus(program):
        return
    if any(cell.magic == "tpu_train" for cell in program.cells):  # puts it on, and takes it off on a TPU
        return
    if any(_says_jit(call) for call in compiles) or not any(program.methods(method) for method in _FITS):
        return
    for call in compiles:
        yield call.ctx.finding(
            call.node,
            f"{call.ctx.source(call.node.func)} is called without jit_compile in a program that is to run on a TPU.",
            "Add jit_compile=True while there is no TPU, and take it out again on the TPU.",
            advice=True,
        )


def _is_distributed(program: CheckedProgram) -> bool:
    if program.calls("tensorflow.distribute.") or program.methods("scope"):
        return True
    return any(_BY_NAME.search(cell.text) for cell in program.cells)


def _says_jit(call: CallSite) -> bool:
    eager = call.ctx.constant(call.ctx.argument(call.node, "run_eagerly")) is True
    return eager or call.ctx.argument(call.node, "jit_compile") is not None or call.ctx.has_unknown_arguments(call.node)


def _speaks_of_tpus(program: CheckedProgram) -> bool:
    return any(_TPU.search(cell.text) for cell in program.cells)
