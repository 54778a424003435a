"""Each program of cells/ under `%%tpu_train`, in a real kernel, against its plain run; and the table of the docs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.magics.conftest import as_new
from tests.magics.kernel import LOAD, Kernel, running_kernel
from tests.programs import __main__ as command
from tests.programs import compare, notebook
from tests.programs.__main__ import PlainRuns
from tests.programs.program import Program, all_programs

PROGRAMS = all_programs()
# In `make test`: one of each form, whose plain runs are all on the CPU, in one process. The others are long.
FEW = {
    *("accelerate_notebook_launcher", "early_stopping", "gradient_accumulation", "own_script_loop"),
    *("own_trainer_class", "torch_xla_two_cells", "trainer_resume"),
}


@pytest.fixture(scope="module")
def plain_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, PlainRuns]]:
    """One process for those on the CPU and one for those on XLA:CPU, as far as they are asked for; they run beside the
    kernel."""
    folder = tmp_path_factory.mktemp("plain")
    here = [item for item in request.session.items if item.path == request.path and "[" in item.name]
    asked: list[Program] = [item.callspec.params["program"] for item in here]  # type: ignore[attr-defined]
    with ExitStack() as stack:
        yield {
            truth: stack.enter_context(PlainRuns(truth, [one for one in asked if one.truth == truth], folder))
            for truth in {one.truth for one in asked}
        }


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with running_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        kernel.run(LOAD).good()
        yield kernel


@pytest.mark.process
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=[] if program.name in FEW else [pytest.mark.long])
        for program in PROGRAMS
    ],
)
def test_a_program_does_what_its_plain_run_does(
    program: Program, plain_runs: dict[str, PlainRuns], kernel: Kernel, tmp_path: Path
) -> None:
    with as_new(kernel, tmp_path):
        ran = notebook.run(kernel, program, tmp_path)
    plain = plain_runs[program.truth].of(program)
    found = command.problems(program, plain, ran)
    if program.truth == "XLA:CPU":
        found += command.plain_problems(program, plain)
    assert not found, "\n".join(found)


def test_the_docs_have_these_programs() -> None:
    document = command.DOCS.read_text(encoding="utf-8")
    assert document == command.with_table(document, PROGRAMS), "python -m tests.programs --write makes the table again"
    assert len(PROGRAMS) == 24


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
