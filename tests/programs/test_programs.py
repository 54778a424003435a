"""Each program of cells/ under `%%tpu_train`, in a real kernel, against its plain run; and the table of the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.magics.conftest import as_new
from tests.magics.kernel import LOAD, Kernel
from tests.programs import __main__ as command
from tests.programs import compare, notebook
from tests.programs.__main__ import PlainRuns, program_kernel
from tests.programs.program import Program, all_programs

PROGRAMS = all_programs()
# In `make test`: one of each form, whose plain runs are all on the CPU, in one process. The others are long.
FEW = {
    *(
        "accelerate_notebook_launcher",
        "early_stopping",
        "gradient_accumulation",
        "own_class_with_device",
        "own_script_loop",
        "summary_writer",
        "torchmetrics_earlier_metric",
    ),
    *("own_trainer_class", "torch_xla_two_cells", "trainer_resume"),
}


@pytest.fixture(scope="module")
def plain_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, bool], PlainRuns]]:
    """A process for each truth, with libraries and without, as far as they are asked for; they run with the kernel."""
    folder = tmp_path_factory.mktemp("plain")
    here = [item for item in request.session.items if item.path == request.path and "[" in item.name]
    asked: dict[tuple[str, bool], list[Program]] = {}
    for item in here:
        program = item.callspec.params["program"]  # type: ignore[attr-defined]
        asked.setdefault((program.truth, program.libraries), []).append(program)
    with ExitStack() as stack:
        yield {
            (truth, libraries): stack.enter_context(PlainRuns(truth, programs, folder, libraries))
            for (truth, libraries), programs in asked.items()
        }


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Kernel]]:
    """A kernel with libraries and one without, each started when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def of(libraries: bool) -> Kernel:
            kernel = stack.enter_context(program_kernel(tmp_path_factory.mktemp("kernel"), libraries))
            kernel.run(LOAD).good()
            return kernel

        yield of


@pytest.mark.process
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=[] if program.name in FEW else [pytest.mark.long])
        for program in PROGRAMS
    ],
)
def test_a_program_does_what_its_plain_run_does(
    program: Program,
    plain_runs: dict[tuple[str, bool], PlainRuns],
    kernels: Callable[[bool], Kernel],
    tmp_path: Path,
) -> None:
    kernel = kernels(program.libraries)
    with as_new(kernel, tmp_path):
        ran = notebook.run(kernel, program, tmp_path)
    plain = plain_runs[program.truth, program.libraries].of(program)
    found = command.problems(program, plain, ran)
    if program.truth == "XLA:CPU":
        found += command.plain_problems(program, plain)
    assert not found, "\n".join(found)


def test_the_docs_have_these_programs() -> None:
    document = command.DOCS.read_text(encoding="utf-8")
    assert document == command.with_table(document, PROGRAMS), "python -m tests.programs --write makes the table again"
    assert len(PROGRAMS) == 36


def test_what_differs_is_found() -> None:
    plain = {"losses": [1.0, 2.0], "weights": {"w": np.ones(3)}, "steps": 4, "best": None, "tied": True}
    assert list(compare.differences(plain, plain)) == []
    ours = {"losses": [1.0], "weights": {"w": np.array([1, 1, 1.00001])}, "steps": 5, "best": 0.5, "new": 1}
    assert [line.split(":")[0] for line in compare.differences(plain, ours)] == [
        "compared.losses",
        "compared.weights.w",
        "compared.steps",
        "compared.best",
        "compared.tied",
        "compared.new",
    ]
    assert list(compare.differences(compare.portable({"w": 1.0, "train_runtime": 2.0}), {"w": 1 + 5e-7})) == []
