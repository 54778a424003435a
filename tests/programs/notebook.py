"""A program as a notebook with the extension: its cells in a real kernel, and the records of its runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.magics.kernel import LOAD, Kernel
from tests.programs import compare
from tests.programs.plain import prelude
from tests.programs.program import Program
from tpu_magics.runs.reader import list_runs

TIMEOUT = 200.0  # seconds for one cell: the programs are small, but machines may be busy
# What a restart of the kernel would do: accelerate keeps its state in a class, torch its default type.
RESTARTED = """
import sys, torch
torch.set_default_dtype(torch.float32)
if "accelerate.state" in sys.modules:
    sys.modules["accelerate.state"].AcceleratorState._reset_state(True)
    sys.modules["accelerate.state"].GradientState._reset_state()
"""


@dataclass
class Ran:
    """What a program came to under `%%tpu_train`. `printed`: the output of its training cells; `error`: of the cell
    that ended it, else ""."""

    compared: Any = None
    compiles: list[int] = field(default_factory=list)
    printed: str = ""
    error: str = ""


def run(kernel: Kernel, program: Program, folder: Path) -> Ran:
    """Run its cells in the kernel, which `folder` is fresh for."""
    kernel.fresh(folder)
    found = Ran()
    for source in (RESTARTED, LOAD, f"%tpu_init --processes {program.ranks}", prelude(program)):
        kernel.run(source).good()
    for cell in program.cells:
        done = kernel.run(cell.under_magics(), TIMEOUT)
        if cell.magic:
            found.printed += done.printed
        if bool(done.error) is not cell.raises:
            found.error = done.error or f"the cell should have raised:\n{cell.source}"
            return found
    kernel.run(f"from tests.programs import compare\ncompare.write(compared, {str(folder / 'compared')!r})").good()
    found.compared = compare.read(folder / "compared")
    found.compiles = [len(run.events("compile", rank=0)) for run in reversed(list_runs(folder / ".tpu_runs"))]
    return found
