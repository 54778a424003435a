"""What a person reads when something is wrong: the place is the cell and the line that they see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .kernel import Kernel
from .samples import FORK, MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process


# -- lines of cells ---------------------------------------------------------------------------------------------------


def test_lines_through_helpers_of_earlier_cells(kernel: Kernel) -> None:
    """Blank lines, comments, decorators, indented functions, line ends at the end: lines are those of the cell."""
    kernel.run("x = 1\n\n# a comment\n\ndef helper(value):\n    return 1 / value\n\n\n").good()
    first = kernel.run(
        """import functools
class Outer:
    def method(self, value):

        return helper(value)

    @staticmethod
    def plain(value):
        return Outer().method(value)
"""
    ).good()
    cell = kernel.run(
        """

# a comment above the magic
#@title Training
%%tpu_train

# a comment

if True:
    @functools.lru_cache
    def indented(value):
        return Outer.plain(
            value
        )

@functools.lru_cache
def training_function():
    y = 3

    indented(0)
"""
    )
    number = first.count + 1
    assert cell.said.startswith(
        "TrainingFailed: Rank 0 raised ZeroDivisionError: division by zero "
        f"Why: It was raised at `return 1 / value` (In [{first.count - 1}], line 6, in helper). "
        "What to do: Fix it and run the cell again. The notebook's models are unchanged. "
    )
    assert [line.strip() for line in cell.error.splitlines()[-5:]] == [
        f"In [{number}], line 20, in training_function: indented(0)",
        f"In [{number}], line 12, in indented: return Outer.plain(",
        f"In [{first.count}], line 9, in plain: return Outer().method(value)",
        f"In [{first.count}], line 5, in method: return helper(value)",
        f"In [{first.count - 1}], line 6, in helper: return 1 / value",
    ]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%tpu_train\nx = 1\n\nx / 0", 4),
        ("%%tpu_train\n\n\n# here\nimport math\ny = 2\nmath.sqrt(-1)\n\n", 7),
        ("%%tpu_train\n!true\n%time x = 1\nboom()", 4),
        ("%%time\n%%tpu_train\ndef f():\n    boom()", 4),
        ("%%tpu_train\n\ndef f():\n    !true\n\n    boom()", 6),
        ("%%tpu_train\nfrom accelerate import notebook_launcher\ndef f():\n\n    boom()\nnotebook_launcher(f, ())", 5),
        ("%%tpu_train\n    def f():\n        x = 1\n        boom()", 4),
    ],
)
def test_lines_in_every_form(kernel: Kernel, cell: str, line: int) -> None:
    done = kernel.run(cell)
    assert done.error_type == "TrainingFailed", done.shown
    assert f"In [{kernel.value('len(In)') - 2}], line {line}" in done.said


def test_statements_that_fail_in_the_notebook_show_the_usual_traceback(kernel: Kernel) -> None:
    kernel.run(FORK).good()
    cell = kernel.run("%%tpu_train\n\nrows = []\nrows[3]\ndef training_function():\n    pass\n")
    assert cell.error_type == "IndexError" and "FORKED" not in cell.shown
    assert "----> 4 rows[3]" in cell.error and "list index out of range" in cell.error
    assert "tpu_magics/" not in cell.error, "frames of ours are shown"
    cell = kernel.run(
        "%%tpu_train\nfrom accelerate import notebook_launcher\nn = int('x')\nnotebook_launcher(print, (n,))"
    )
    assert cell.error_type == "ValueError" and "----> 3 n = int('x')" in cell.error
    assert "tpu_magics/" not in cell.error and "FORKED" not in cell.shown


@pytest.mark.parametrize(
    ("cell", "told", "line", "code"),
    [
        ("%%tpu_train\nx = = 5", "invalid syntax", 2, "x = = 5"),
        ("%%tpu_train\nx = 3\nreturn 5", "'return' outside function", 3, "return 5"),
        ("%%tpu_train\n\ndef f():\n    return (1,\n", "was never closed", 4, "return (1,"),
        ("%%tpu_train\ndef f():\nreturn 1", "expected an indented block", 3, "return 1"),
    ],
)
def test_cells_that_are_not_python(kernel: Kernel, cell: str, told: str, line: int, code: str) -> None:
    done = kernel.run(cell)
    assert done.error.startswith("TpuMagicsError: The cell is not valid Python: ") and told in done.error
    assert f"In [{kernel.value('len(In)') - 2}], line {line}." in done.said
    assert code in done.error and "tpu_magics/" not in done.error


# -- cells and arguments that cannot be trained -----------------------------------------------------------------------

REFUSED = [
    ("%%tpu_train", "The cell under %%tpu_train is empty", "use %tpu_train FUNCTION"),
    ("%%tpu_train\n\n   \n", "The cell under %%tpu_train is empty", "use %tpu_train FUNCTION"),
    ("%%tpu_train\n# only\n# comments", "The cell under %%tpu_train is empty", "use %tpu_train FUNCTION"),
    ("%%tpu_train\nimport os\nclass A:\n    x = 1", "has nothing to train", "End the cell with the training function"),
    ("%tpu_train", "%tpu_train needs something to train", "%tpu_train FUNCTION [ARG ...]"),
    ("%tpu_train nowhere.py", "The script nowhere.py cannot be read: No such file", "Give the path of the script"),
    ("%tpu_train 3", "is not a function", "Use a function"),
    ("%tpu_train lr=3", "%tpu_train needs something to train", "%tpu_train FUNCTION [ARG ...]"),
    (
        "def nothing(): pass\n%tpu_train nothing()",
        "`nothing()` is a call, which gives no function",
        "parentheses: %tpu_train nothing",
    ),
    ("%tpu_train modle", "NameError: name 'modle' is not defined", "Define `modle` in an earlier cell"),
    ("%%tpu_train mdl\ndef f(m): pass", "NameError: name 'mdl'", "Define `mdl` in an earlier cell"),
    (
        "%%tpu_train 1/0\ndef f(m): pass",
        "The ARG '1/0' cannot be evaluated: ZeroDivisionError",
        "Fix the expression",
    ),
    ("%%tpu_train 1+\ndef f(m): pass", "The ARG '1+'", "Put quotes around"),
    ("%%tpu_train a=1 2\ndef f(m): pass", "The positional ARG '2' follows a keyword ARG", "before the first key=value"),
    ("%%tpu_train 'a\ndef f(m): pass", "an unclosed quote '", "Close the quote"),
    ("%%tpu_train [1, 2\ndef f(m): pass", "an unclosed bracket", "Close the bracket"),
    (
        "%%tpu_train 1\ndef f(): pass",
        "f() does not accept",
        "Give one for each parameter: %%tpu_train, or tpu_magics.train(f)",
    ),
    ("%%tpu_train\ndef f(model, lr): pass", "missing a required argument: 'model'", "%%tpu_train model lr"),
    ("%%tpu_train\ndef f():\n    yield 1", "`f` is a generator function", "Change it to a normal function"),
    ("%%tpu_train\nasync def f():\n    pass", "`f` is an async function", "Change it to a normal function"),
    ("%%tpu_train --hoits off\ndef f(): pass", "has no option --hoits; did you mean --hoist?", "%%tpu_train -h"),
    ("%%tpu_train --hoist of\ndef f(): pass", "invalid choice: 'of'", "%%tpu_train -h"),
    ("%%tpu_train --qqq\ndef f(): pass", "has no option --qqq", "See %%tpu_train -h"),
    ("%%tpu_train --steps\ndef f(): pass", "--steps: expected one argument", "%%tpu_train -h"),
    ("%%tpu_train -n 0\ndef f(): pass", "-n 0 is not valid", "omit it"),
    ("%%tpu_train -n 8 --spmd\ndef f(): pass", "-n 8 and --spmd", "Use only one of them"),
    ("%%tpu_train --collective-timeout 0\ndef f(): pass", "--collective-timeout 0 is not valid", "omit it"),
    ("%%tpu_train -n two\ndef f(): pass", "'two'", "%%tpu_train -h"),
    ("%%tpu_train --steps 0\ndef f(): pass", "--steps 0 is not valid", "omit it"),
    ("%%tpu_train --timeout x\ndef f(): pass", "'x' is not a number of seconds", "%%tpu_train -h"),
    ("%%tpu_train --timeout 0\ndef f(): pass", "--timeout 0 is not valid", "omit it"),
    ("%%tpu_train --timeout nan\ndef f(): pass", "--timeout nan is not valid", "omit it"),
    ("%%tpu_train --run-name a/b\ndef f(): pass", "A run cannot be named 'a/b'", "without a slash"),
    ("%%tpu_train -o 3x\ndef f(): pass", "-o 3x is not a name", "Give -o an identifier"),
    ("%%tpu_train -o class\ndef f(): pass", "-o class is not a name", "Give -o an identifier"),
    ("%%tpu_train -o __builtins__\ndef f(): pass", "-o __builtins__ would replace a name", "Give -o another name"),
    ("%%tpu_train -o x x\ndef f(x): pass", "-o x would replace `x`, which the function gets", "another name"),
    ("%tpu_train -o x int y=x", "-o x would replace `x`, which the function gets", "another name"),
    ("%%tpu_train -o print\ndef f(): pass", "-o print would replace a name", "Give -o another name"),
    ("%tpu_runs nowhere", "There is no run yet", "%%tpu_train"),
    ("%tpu_logs", "There is no run yet", "%%tpu_train"),
    ("%tpu_stop", "No run is active in the background", "%tpu_runs"),
]


@pytest.mark.parametrize(("cell", "what", "todo"), REFUSED, ids=[cell.replace("\n", " ") for cell, _, _ in REFUSED])
def test_refused_with_its_reason_before_anything_forks(kernel: Kernel, cell: str, what: str, todo: str) -> None:
    kernel.run(FORK).good()
    done = kernel.run(cell)
    assert done.error_type == "TpuMagicsError", done.shown
    assert what in done.said and todo in done.said
    assert "FORKED" not in done.shown and "Traceback" not in done.error
    assert kernel.run("%tpu_runs").good().printed.count("\n") < 2


def test_a_script_that_is_a_pipe_is_not_waited_for(kernel: Kernel, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "The script pipe.py cannot be read: it is a named pipe, not a file." in kernel.run("%tpu_train pipe.py").said


def test_the_result_is_bound_also_after_a_failure(kernel: Kernel) -> None:
    kernel.run(MODEL + TRAIN).good()
    kernel.run("%tpu_train train model -o mine").good()
    assert kernel.value("(mine.status, '_tpu' in globals())") == ("done", False)
    cell = kernel.run("%%tpu_train model -o mine\ndef broken(model):\n    model.weight.data.zero_()\n    boom")
    assert "NameError: name 'boom' is not defined" in cell.said
    assert kernel.value("(mine.status, mine.run.name, len(mine.run.events()) > 0)") == ("failed", "broken", True)
    assert "The run 'broken' has no results: its status is failed" in kernel.run("mine.value").said
    assert "name 'boom' is not defined" in kernel.run("mine.wait()").said
    kernel.run("%tpu_train train model").good()
    assert kernel.value(f"(mine.status, _tpu.status, {TRAINED})") == ("failed", "done", True)
