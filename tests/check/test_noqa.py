"""Comments that suppress findings."""

from __future__ import annotations

import pytest

from tests.check.own_rules import finding
from tpu_magics.check.cells import cell_of
from tpu_magics.check.noqa import Noqa, without_suppressed


def silenced(text: str, line: int = 1, end_line: int = 0, code: str = "TPU901") -> bool:
    found = finding(line, 1, end_line=end_line or line, code=code)
    return not without_suppressed([found], [cell_of(text, "a.py")])


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "#noqa",
        "# NoQA",
        "#  noqa  ",
        "# noqa: TPU901",
        "# noqa:TPU901",
        "# noqa : TPU901",
        "# noqa: tpu901",
        "# noqa: E501, TPU901",
        "# noqa: E501,TPU901",
        "# noqa: E501 TPU901 W1",
        "# noqa: TPU901 - the loss is read on purpose",
        "# type: ignore # noqa: TPU901",
        "# see below  # noqa",
        "# noqa because",
    ],
)
def test_a_line_is_silenced(comment: str) -> None:
    assert silenced(f"x = red(1)  {comment}")
    assert silenced(f"y = 1\nx = '#' + red('''a\n''')  {comment}", 3)


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "# noqa: E501",
        "# noqa: TPU90",
        "# noqa: TPU9",
        "# noqa: TPU9011",
        "# noqa-not",
        "# noqafy",
        "# no qa",
        "# see noqa",
        "# ruff: noqa",
        "; y = '# noqa'",
        '; y = """# noqa"""',
        "; y = f'# noqa: {TPU901}'",
        "; y = 'it\\'s # noqa'",
    ],
)
def test_a_line_is_not_silenced(comment: str) -> None:
    assert not silenced(f"x = red(1)  {comment}")


STATEMENT = """\
x = red(
    a,  # noqa: E501
    b(
        c
    ),
)  # noqa: TPU901
y = 1  # noqa
"""
STRING = "x = red('''\n# noqa\n''')\ny = red(1)\n"
EXPRESSION = "x = [\n  red(\n    1,\n  ),  # noqa\n  2,\n]\n"
BACKSLASH = "x = a + \\\n  red(1) + \\\n  2  # noqa\ny = red(1)\n"
COMPOUND = "if (red(1) and\n      b):  # noqa\n    x = 1\n    y = 2\n"


@pytest.mark.parametrize(
    ("text", "line", "end_line", "code", "expected"),
    [
        (STATEMENT, 1, 6, "TPU901", True),  # a statement: on its last line
        (STATEMENT, 3, 5, "TPU901", True),
        (STATEMENT, 4, 4, "TPU901", True),
        (STATEMENT, 1, 6, "TPU902", False),
        (STATEMENT.replace(")  # noqa: TPU901", ")"), 1, 6, "TPU901", False),
        (STRING, 1, 3, "TPU901", False),  # a string is no comment
        (STRING, 4, 4, "TPU901", False),
        (STRING.replace("(1)", "(1)  # noqa"), 4, 4, "TPU901", True),
        (EXPRESSION, 2, 4, "TPU901", True),  # an expression: on its last line
        (EXPRESSION, 1, 6, "TPU901", False),
        (EXPRESSION, 5, 5, "TPU901", False),
        (BACKSLASH, 1, 3, "TPU901", True),
        (BACKSLASH, 2, 2, "TPU901", True),
        (BACKSLASH, 4, 4, "TPU901", False),
        (COMPOUND, 1, 4, "TPU901", True),  # a compound statement: where it is headed
        ("if red(1):\n    x = 1\n    y = 2  # noqa\n", 1, 3, "TPU901", False),
    ],
)
def test_code_of_several_lines(text: str, line: int, end_line: int, code: str, expected: bool) -> None:
    assert silenced(text, line, end_line, code) is expected


@pytest.mark.parametrize(
    "comment", ["# tpu_magics: skip-file", "#tpu-magics:skip-file", "# TPU_MAGICS: skip-file (old)"]
)
def test_a_whole_file_is_skipped(comment: str) -> None:
    assert silenced(f"x = 1\n{comment}\ny = red(1)", 3)
    cells = [cell_of(text, "a.ipynb", number) for number, text in enumerate(("red(1)", comment, "red(2)"), start=1)]
    assert not without_suppressed([finding(cell=1), finding(cell=3)], cells)


@pytest.mark.parametrize("comment", ["'# tpu_magics: skip-file'", "# tpu_magics: skip", "# other: skip-file"])
def test_a_whole_file_is_not_skipped(comment: str) -> None:
    assert not silenced(f"x = 1\n{comment}\ny = red(1)", 3)


def test_a_comment_speaks_for_its_own_cell() -> None:
    cells = [cell_of(text, "a.ipynb", number) for number, text in enumerate(("red(1)", "red(1)  # noqa"), start=1)]
    findings = [finding(path="a.ipynb", cell=number) for number in (1, 2, None)]
    assert without_suppressed(findings, cells) == [findings[0], findings[2]]


def test_cells_of_a_running_notebook_differ_by_their_paths() -> None:
    cells = [cell_of("red(1)", "In [1]"), cell_of("red(1)  # noqa", "In [2]")]
    findings = [finding(path="In [1]"), finding(path="In [2]")]
    assert without_suppressed(findings, cells) == findings[:1]


def test_comments_of_a_cell_with_magics() -> None:
    text = "!echo it's fine\nx = red(1)  # noqa\n"
    assert Noqa(text).lines == {2: frozenset()}


def test_what_does_not_parse_can_be_silenced_too() -> None:
    (cell,) = [cell_of("print 'x'  # noqa: TPU001\n", "a.py")]
    assert cell.problem is not None
    assert not without_suppressed([cell.problem], [cell])
