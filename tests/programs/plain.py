"""Plain runs: the same cells in an IPython that has never heard of tpu_magics, each program in a fork of one process.

    python -m tests.programs.plain (CPU|XLA:CPU) FOLDER NAME...

writes FOLDER/NAME.pickle (see compare.py) and prints one JSON line for each program: `error`, and with torch_xla the
`compiles` that it counted in each training cell. "CPU": torch_xla cannot be imported, as on a machine without it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cases.plain_run import compiles, in_fork
from tests.programs import compare
from tests.programs.program import FOLDER, Cell, Program, read_program

DOUBLE = "import torch; torch.set_default_dtype(torch.float64)"
"""What runs before a program whose plain run is on the CPU, in both runs: XLA orders sums otherwise than PyTorch, and
Adam makes whole steps of the rounding of a gradient that is zero. In double precision what differs is not rounding."""


def prelude(program: Program) -> str:
    return DOUBLE if program.truth == "CPU" else ""


def main(truth: str, folder: str, *names: str) -> None:
    if truth == "CPU":
        sys.modules["torch_xla"] = None  # type: ignore[assignment]  # its import fails, and find_spec() finds none
    else:
        _import_torch_xla()
    import accelerate  # noqa: F401 - imported once, for all programs
    import transformers.trainer
    from IPython.core.interactiveshell import InteractiveShell  # noqa: F401

    assert transformers.trainer.is_torch_xla_available() is (truth != "CPU")
    for name in names:
        print(json.dumps(_in_fork(read_program(FOLDER / f"{name}.py"), Path(folder))), flush=True)


def _import_torch_xla() -> None:
    """On its TPU branch where that is rehearsed, as the runs that are compared: libraries compile otherwise there."""
    from tpu_magics.backends import pjrt_stand_in
    from tpu_magics.backends.base import WorkerSpec
    from tpu_magics.backends.torch.worker import set_variables
    from tpu_magics.backends.torch_xla import tpu_branch, tpu_kernels

    spec = WorkerSpec(0, 1, "CPU", branch="TPU" if pjrt_stand_in.is_installed() else "CPU")
    set_variables(tpu_branch.variables(spec))
    tpu_branch.enter(spec)
    import torch_xla  # noqa: F401

    if spec.in_tpus_place:
        tpu_kernels.without_libtpu()


def _in_fork(program: Program, folder: Path) -> dict[str, Any]:
    work = folder / program.name
    work.mkdir()

    def body() -> dict[str, Any]:
        os.chdir(work)
        return {"compiles": run(program, folder / f"{program.name}.pickle")}

    return {"name": program.name, "compiles": [], **in_fork(body, work)}


def run(program: Program, path: Path) -> list[int]:
    """Run its cells, and write what it compares. The compiles of each training cell.

    With torch_xla a program whose truth is the CPU is run for its compiles only. It ends with its last training cell:
    the model is then on the device, where these programs do not look for it; and an optimizer of an earlier cell keeps
    its parameters, which by torch_xla's own default it loses at `model.to(device)`."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    torch.__future__.set_swap_module_params_on_conversion(program.truth != truth())
    shell = InteractiveShell.instance(colors="NoColor")
    shell.run_cell(prelude(program), store_history=False).raise_error()
    found = []
    for cell in program.cells:
        before = compiles()
        _run_cell(shell, cell)
        if cell.magic:
            found.append(compiles() - before)
        if len(found) == len(program.compiles) and program.truth != truth():
            return found
    compare.write(shell.user_ns["compared"], path)
    return found


def _run_cell(shell: Any, cell: Cell) -> None:
    result = shell.run_cell(cell.plain(), store_history=True)
    if not cell.raises:
        result.raise_error()
    elif result.success:
        raise AssertionError(f"the cell should have raised:\n{cell.source}")


def truth() -> str:
    """Where this process runs programs."""
    return "XLA:CPU" if sys.modules.get("torch_xla") else "CPU"


if __name__ == "__main__":
    main(*sys.argv[1:])
