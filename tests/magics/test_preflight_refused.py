"""What `%tpu_preflight` refuses before it traces anything: no kernel is needed for it, and no compiler is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tpu_magics
from tests.preflight.conftest import tpu_compiler  # noqa: F401
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.magics import headless

TARGET = "--target v5e-1"
FUNCTIONS = """
def train(model, steps=3, lr=0.1):
    raise AssertionError("it was called")

def needs(model, batch, *, rate):
    raise AssertionError("it was called")

model, word, flag = object(), "many", True
"""
WRONG = {
    "": "%tpu_preflight needs FUNCTION.",
    "train model": "%tpu_preflight needs --target.",
    f"train(model) {TARGET}": "`train(model)` is a call; it was not executed.",
    f"train model -n 4 {TARGET}": "-n 4 is not possible on v5litepod-1.",
    f"model=model {TARGET}": "%tpu_preflight needs a function.",
    f"trian model {TARGET}": "The notebook has no `trian`; did you mean `train`?\n"
    "Why: Defined functions: train, needs.\n",
    f"nothing_like_it {TARGET}": "The notebook has no `nothing_like_it`.\n",
    f"train modle {TARGET}": "The ARG 'modle' cannot be evaluated: NameError",
    "train model --target v9-8": 'There is no TPU named "v9-8".\nWhy: Similar names: v4-8',
    "train model --target A100": '"A100" is a GPU.\nWhy: A target is a TPU or a slice of TPUs',
    f"model {TARGET}": "is not a function.",
    f"needs {TARGET}": "needs(model, batch, *, rate) does not take these arguments: missing a required argument: "
    "'model'.\nWhy: Given: 0 positional.\nWhat to do: Give a value for each parameter without a default: "
    "%tpu_preflight needs model batch rate=... --target ...",
    f"train model rate=3 {TARGET}": "train(model, steps=3, lr=0.1) does not take these arguments: got an unexpected "
    "keyword argument 'rate'.\nWhy: Given: 1 positional, rate.\n",
    f"train model {TARGET} --fit batch": "--fit batch: there is no such name.\nWhy: It is neither a parameter of "
    "the function (model, steps, lr) nor a variable of the notebook.",
    f"train model {TARGET} --fit word": "--fit word: its value is 'many'.",
    f"train model {TARGET} --fit flag": "--fit flag: its value is True.",
    f"train model {TARGET} --fit lr": "--fit lr: its value is 0.1.",
    f"train model {TARGET} -n 0": "-n 0 is not valid.",
    f"train model {TARGET} -n many": "argument -n/--processes: 'many' is not a whole number.",
    f"train model {TARGET} -n 2 --spmd": "-n 2 and --spmd cannot be combined.",
    f"train model {TARGET} --steps 0": "--steps 0 is not valid.",
    f"train model {TARGET} -o 2x": "-o 2x is not a name.",
    f"--compare steps=3,4 train model {TARGET}": "--compare train cannot be compared.\nWhy: Each word after --compare "
    "is NAME=VALUE,VALUE.\nWhat to do: Put the function and its arguments before --compare",
    f"train model {TARGET} --compare word=1,2": "--compare word: its value is 'many'.",
    f"train model {TARGET} --compare stpes=1,2": "--compare stpes: there is no such name.",
    f"train model {TARGET} --compare steps=2,3 steps=4": "--compare has steps twice.",
    f"train model {TARGET} --compare precision=fp8": "'fp8' cannot be read: the values are fp32, bf16, bf16-downcast.",
    f"train model {TARGET} --fit steps --advise": "--fit and --advise do not go together.",
    f"train model {TARGET} --fitt x": "%tpu_preflight has no option --fitt; did you mean --fit?",
}


@pytest.fixture
def shell(
    fresh_session: session.Session,
    tmp_path: Path,
    tpu_compiler: tuple[str, ...],  # noqa: F811
) -> Iterator[headless.HeadlessShell]:
    with headless.shell_in(tmp_path) as found:
        found.run_cell(FUNCTIONS).raise_error()
        yield found


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said(shell: headless.HeadlessShell, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        shell.run_line_magic("tpu_preflight", line)
    said = str(caught.value)
    assert WRONG[line] in said and "%%tpu_train" not in said
    assert "What to do: " in said
    assert capsys.readouterr().out == "" and "_preflight" not in shell.user_ns


def test_the_python_function_names_itself(shell: headless.HeadlessShell) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        tpu_magics.preflight(shell.user_ns["needs"], 1, target="v5e-1")
    assert str(caught.value).endswith("tpu_magics.preflight(function, model, batch, rate=..., target=...)")
