"""Cells: files, notebooks and IPython syntax as Python with the same lines and columns."""

from __future__ import annotations

import ast
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.check.own_rules import notebook
from tpu_magics.check import check_cells
from tpu_magics.check.cells import CodeCell, cell_of, cells_of, decode, notebook_lines, read_file
from tpu_magics.check.ipython import mask
from tpu_magics.check.syntax import PythonParseError


def cell(text: str) -> CodeCell:
    return cell_of(text, "In [1]")


def python(text: str) -> str:
    """What of a cell is Python, with no problem."""
    found = cell(text)
    assert found.problem is None, found.problem
    assert found.tree is not None
    return ast.unparse(found.tree)


def calls(found: CodeCell) -> list[tuple[int, str]]:
    """Line and code of the calls in a cell, as their places say."""
    assert found.tree is not None
    return sorted((node.lineno, found.segment(node)) for node in ast.walk(found.tree) if isinstance(node, ast.Call))


# -- IPython --------------------------------------------------------------------------------------------------------

NOTHING = [
    "%matplotlib inline",
    "!pip install torch",
    "!!ls",
    "?name",
    "??name",
    "name?",
    "name??",
    "name.method?",
    "%magic?",
    "a.b[0].c?",
    "name? # what is it",
    "!pip install \\\n  torch \\\n  torch_xla",
    "%env X=1",
    "%load_ext tpu_magics",
    "!echo 'unclosed (",
    '%echo """',
    "!ls {folder}",
]


@pytest.mark.parametrize("text", NOTHING)
def test_magics_commands_and_help_become_pass(text: str) -> None:
    lines = text.count("\n") + 1
    found = cell(f"a = first(1)\n{text}\nb = last(2)")
    assert found.problem is None
    assert calls(found) == [(1, "first(1)"), (2 + lines, "last(2)")]


@pytest.mark.parametrize("text", [one for one in NOTHING if "\n" not in one])
def test_the_same_inside_a_block(text: str) -> None:
    found = cell(f"if a:\n    {text}\nelse:\n\t{text}\nlast(2)")
    assert found.problem is None
    assert calls(found) == [(5, "last(2)")]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x = !ls", "x = get_ipython().getoutput('')"),
        ("x: list = !ls -l *.py", "x: list = get_ipython().getoutput('')"),
        ("a, b = !ls", "a, b = get_ipython().getoutput('')"),
        ("a['x=!'] = !ls", "a['x=!'] = get_ipython().getoutput('')"),
        ("x = %time f(y)", "x = get_ipython().run_line_magic('time', '')"),
        ("x=%env HOME", "x = get_ipython().run_line_magic('env', '')"),
        ("x = !ls \\\n  -l\ny = 1", "x = get_ipython().getoutput('')\ny = 1"),
    ],
)
def test_what_a_command_gives_is_assigned(text: str, kept: str) -> None:
    assert python(text) == ast.unparse(ast.parse(kept))


@pytest.mark.parametrize(
    "text",
    [
        "x = (a\n% b)",
        "x = [a\n  % b,\n  c\n!= d]",
        'x = """\n%time x\n!ls\nname?\n"""',
        "x = '''a\n\\'''\n%time x\n'''",
        "x = 'a\\\n%time b'",
        "x = a \\\n % b",
        "x = f(a  # (\n % b)",
        "x = '(' + ')' + \"'\"",
        "x = {'=!': 1}['=!']; y = a != b",
        "def f(a=(\n% b)): pass",
    ],
)
def test_python_that_looks_like_a_magic_is_unchanged(text: str) -> None:
    """Inside a string, a bracket or a continued line."""
    assert mask(f"!ls\n{text}\n!ls").python == f"pass\n{text}\npass"


@pytest.mark.parametrize("text", ["x = 5 %3", "a = b\\\n%c", "x = (1\n%2)", "s = '''\n!ls\n'''", "if a:\n  x = a != b"])
def test_python_is_unchanged(text: str) -> None:
    assert python(text) == ast.unparse(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "%time y = model(é, 2)",
        "%timeit -n 10 -r3 model(é, 2)",
        "%prun -s cumulative model(é, 2)",
        "%timeit model(é, 2)",
    ],
)
def test_the_statement_of_a_timing_magic_keeps_its_place(text: str) -> None:
    found = cell(f"'é'; if_not = 1\nfor x in y:\n    {text}\n!ls")
    assert calls(found) == [(3, "model(é, 2)")]


def test_a_timed_statement_may_go_on_after_a_backslash() -> None:
    assert calls(cell("%time x = f(1) + \\\n  g(2)\nh(3)")) == [(1, "f(1)"), (2, "g(2)"), (3, "h(3)")]
    assert calls(cell("%time for \\\n  g(2)\nh(3)")) == [(3, "h(3)")]


def test_a_timed_compound_statement_is_left_out() -> None:
    assert calls(cell("%time for i in range(3): f(i)\nh(3)")) == [(2, "h(3)")]


def test_line_magics_are_recorded_with_their_words() -> None:
    found = cell(
        "%env XLA_USE_BF16=1\nif a:\n    %set_env X  1\n%tpu_train f model \\\n  -n 8\ny = %time f(1)\n%tpu_init"
    )
    assert found.line_magics == (
        (1, "env", "XLA_USE_BF16=1"), (3, "set_env", "X  1"), (4, "tpu_train", "f model -n 8"), (6, "time", "f(1)"),
        (7, "tpu_init", ""),
    )  # fmt: skip
    assert found.line_magics[2].name == "tpu_train"


@pytest.mark.parametrize("name", ["time", "timeit", "capture", "prun", "tpu_train", "tpu_check", "tpu_anything"])
def test_the_body_of_these_cell_magics_is_python(name: str) -> None:
    found = cell(f"%%{name} some words -n 8 \nx = f(1)\n")
    assert (found.magic, found.magic_line, calls(found)) == (name, "some words -n 8", [(2, "f(1)")])


@pytest.mark.parametrize("name", ["bash", "html", "writefile x.py", "javascript", "sh", "script false", "unknown", "!"])
def test_the_body_of_other_cell_magics_is_not(name: str) -> None:
    found = cell(f"%%{name}\nx = f(1)\nif this then that")
    if name == "!":
        assert found.problem is not None
        return
    assert (found.magic, found.problem) == (name.split()[0], None)
    assert found.tree is not None
    assert not found.tree.body


def test_comments_and_blank_lines_may_stand_above_a_cell_magic() -> None:
    found = cell("\n#@title Train\n\n%%tpu_train model\nx = f(1)")
    assert (found.magic, found.magic_line, calls(found)) == ("tpu_train", "model", [(5, "f(1)")])


@pytest.mark.parametrize("text", ["%%time\n%%tpu_train model\nf(1)", "%%tpu_train model\n%%time\nf(1)"])
def test_of_two_cell_magics_ours_is_recorded(text: str) -> None:
    found = cell(text)
    assert (found.magic, found.magic_line, calls(found)) == ("tpu_train", "model", [(3, "f(1)")])
    assert cell("%%time\n%%bash\nif x; then").magic == "time"
    assert cell("%%time\n%%bash\nif x; then").problem is None


def test_the_setup_of_timeit_is_python() -> None:
    assert calls(cell("%%timeit -n 3 x = f(1)\ng(x)")) == [(1, "f(1)"), (2, "g(x)")]


@pytest.mark.parametrize(
    "text",
    [
        "await f(1)",
        "async for a in f(1):\n    pass",
        "async with f(1) as g:\n    pass",
        "x = [a async for a in f(1)]",
        "%time await f(1)",
        "!ls\nawait f(1)",
        "return f(1)",
        "    x = f(1)\n    y = 2",
        "  # a comment\n    x = f(1)\n    !ls",
        ">>> x = f(1)\n>>> if x:\n...     y = 2",
        "In [3]: x = f(1)\n   ...: y = 2",
        "x = 1\n\x0cf(1)",
        "f(1)  # pip install torch",
    ],
)
def test_cells_that_are_fine_in_a_notebook(text: str) -> None:
    found = cell(text)
    assert found.problem is None
    assert [code for _, code in calls(found)] == ["f(1)"]


@pytest.mark.parametrize("text", ["pip install torch", "# get it\npip install -q torch\n", "cd folder", "ls -l"])
def test_automagic_in_a_cell_of_one_line(text: str) -> None:
    assert cell(text).problem is None


@pytest.mark.parametrize("text", ["pip install torch\nx = 1", "import os, print x", "pip ="])
def test_other_lines_are_not_automagic(text: str) -> None:
    assert cell(text).problem is not None


# -- what does not parse --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("x = 1\nprint 'x'", 2, "Missing parentheses in call to 'print'"),
        ("x = 1\nexec 'x'\n", 2, "Missing parentheses in call to 'exec'"),
        ("!ls\nx = (1,\n", 2, "was never closed"),
        ("if x:\ny = 1", 2, "expected an indented block"),
        ("    x = 1\nelse:\n    y = 1", 1, "unexpected indent"),
        ("x = 1\ny = '\0'", 2, "null byte"),
        ("x = 1\ny = '\ud800'", 2, "surrogate"),
        ("(" * 300, 1, "too many nested parentheses"),
        ("x = '''\n", 1, "unterminated triple-quoted string"),
        ("%%time\nx = ", 2, "invalid syntax"),
        ("def f(:\n  pass", 1, "invalid syntax"),
    ],
)
def test_what_does_not_parse_is_a_finding_at_its_line(text: str, line: int, part: str) -> None:
    found = cell(text)
    assert found.tree is None
    assert found.problem is not None
    problem = found.problem
    assert (problem.code, problem.group, problem.line, problem.path) == ("TPU001", "syntax", line, "In [1]")
    assert problem.message.startswith("This cell does not parse: ")
    assert part in problem.message
    assert 1 <= problem.column <= len(found.lines[line - 1]) + 1
    assert problem.column <= problem.end_column
    assert problem.source == found.lines[line - 1].rstrip()


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "a" + ".b" * 100_000, "1" + "+1" * 20_000, "f" + "()" * 50_000])
def test_what_is_nested_too_deeply_is_a_finding(text: str) -> None:
    """Some versions of Python give a tree of any depth; then it is the walk that gives up."""
    (found,) = check_cells([cell(f"import torch\n{text}")])
    assert found.code == "TPU001"
    assert "nested too deeply" in found.message


def test_a_python_file_with_lines_of_ipython_is_reported_and_read() -> None:
    """Colab writes a notebook's `!` lines into its Python file as they are."""
    found = cell_of("import torch\nif x:\n  !pip install torch\ny = f(1)\n%time g(2)\n", "colab.py")
    assert found.problem is not None
    assert (found.problem.line, found.problem.column, found.problem.source) == (3, 3, "  !pip install torch")
    assert "IPython" in found.problem.message
    assert calls(found) == [(4, "f(1)"), (5, "g(2)")]
    assert cell_of("!ls\nf(1)\n", "notebook.ipy").problem is None


@pytest.mark.parametrize("text", ["%%bash\nif x; then", "x = (\n", "%%time\nx = 1\nprint 1"])
def test_a_python_file_is_no_cell(text: str) -> None:
    found = cell_of(text, "a.py")
    assert found.problem is not None
    assert found.problem.message.startswith("This file does not parse")
    assert found.tree is None


@pytest.mark.parametrize("text", ["x = '\\d'", "assert (x, 'y')", "x is 1", "1if x else 2", "%time x = '\\d'"])
def test_no_warning_of_the_checked_code_is_shown(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cell(text).problem is None


# -- places ---------------------------------------------------------------------------------------------------------


def test_places_are_those_of_the_text() -> None:
    found = cell_of("x = 'é€😀'; y = f('ü',\r\n      'ö')\rz = g(1)\r\n", "a.py")
    assert found.text == "x = 'é€😀'; y = f('ü',\n      'ö')\nz = g(1)\n"
    assert calls(found) == [(1, "f('ü',\n      'ö')"), (3, "g(1)")]
    assert found.column(1, len("x = 'é€😀'; ".encode())) == len("x = 'é€😀'; ")


def test_only_line_feeds_end_lines() -> None:
    found = cell_of("x = '\x0b\x1c\u2028'\n\x0cy = f(1)\n", "a.py")
    assert len(found.lines) == 3
    assert calls(found) == [(2, "f(1)")]


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"x = 'a'\n", "utf-8"),
        ("x = 'é'\n".encode(), "utf-8"),
        (b"\xef\xbb\xbfx = 'a'\n", "utf-8-sig"),
        ("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"), "iso-8859-1"),
        ("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '€'\n".encode("cp1252"), "cp1252"),
        (b"\xef\xbb\xbf# coding: utf-8\nx = 1\n", "utf-8-sig"),
    ],
)
def test_encodings_of_files(data: bytes, encoding: str) -> None:
    text, found = decode(data)
    assert found == encoding
    assert text.encode(found) == data
    assert cells_of(data, "a.py")[0].problem is None


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        (b"x = 1\ny = '\xe9'\n", 2, "0xe9"),
        (b"# coding: nonsense\n", 1, "nonsense"),
        (b"# coding: rot13\n", 1, "rot13"),
        (b"\xef\xbb\xbf# coding: latin-1\n", 1, "encoding problem"),
        ("x = 1".encode("utf-16"), 1, "0xff"),
        (b"x = 1\0", 1, "null byte"),
        (b"# coding: utf-7\n+2AA-\n", 2, "surrogate"),
    ],
)
def test_bytes_that_are_no_text_are_a_finding(data: bytes, line: int, part: str) -> None:
    (found,) = cells_of(data, "a.py")
    assert found.problem is not None
    assert (found.problem.line, found.tree) == (line, None)
    assert part in found.problem.message


def test_a_decoding_error_names_one_line_of_the_file() -> None:
    with pytest.raises(PythonParseError) as caught:
        decode(b"a\n\nb = \xff")
    assert caught.value.line == 3


def from_json(found: Any, **options: Any) -> list[CodeCell]:
    return cells_of(json.dumps(found, **options).encode(), "a.ipynb")


def test_the_code_cells_of_a_notebook_are_counted_from_one() -> None:
    found = from_json(notebook("x = 1", ["!ls\n", "y = f(1)"], "print 1", [], "%%bash\nls"))
    assert [each.number for each in found] == [1, 2, 3, 4, 5]
    assert [each.text for each in found] == ["x = 1", "!ls\ny = f(1)", "print 1", "", "%%bash\nls"]
    assert [each.problem is not None for each in found] == [False, False, True, False, False]
    problem = found[2].problem
    assert problem is not None
    assert problem.place == "a.ipynb, cell 3, line 1"


def test_notebooks_of_nbformat_3() -> None:
    cells = [
        {"cell_type": "code", "language": "python", "input": ["x = 1\n", "y = 2"]},
        {"cell_type": "markdown", "source": "x"},
        {"cell_type": "code", "language": "python", "input": "print x"},
        {"cell_type": "code", "language": "R", "input": "x <- 1"},
    ]
    found = from_json({"metadata": {"name": ""}, "nbformat": 3, "worksheets": [{"cells": cells}, {"cells": cells[:1]}]})
    assert [each.text for each in found] == ["x = 1\ny = 2", "print x", "", "x = 1\ny = 2"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"language_info": {"name": "R"}},
        {"kernelspec": {"language": "R", "name": "ir"}},
        {"language_info": {"name": "R"}, "kernelspec": {"language": "python"}},
    ],
)
def test_notebooks_of_other_kernels_are_skipped_with_a_note(metadata: dict[str, Any]) -> None:
    notes: list[str] = []
    assert cells_of(json.dumps(notebook("x <- 1", **metadata)).encode(), "a.ipynb", notes.append) == []
    assert notes == ["a.ipynb: not checked, because it is a notebook in r"]


@pytest.mark.parametrize(
    "metadata",
    [{}, {"language_info": {"name": "python"}}, {"kernelspec": {"language": "python", "name": "x"}}, {"kernelspec": 3}],
)
def test_notebooks_of_python(metadata: dict[str, Any]) -> None:
    assert len(from_json(notebook("x = 1", **metadata))) == 1


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"{", 1),
        (b'{"cells": [\n\n}', 3),
        (b"[]", 1),
        (b"3", 1),
        (b'{"cells": {}}', 1),
        (b'{"a": "\n\xff"}', 2),
        (b"[" * 100_000, 1),
        (b'{"cells": [' + b"[" * 100_000, 1),
        (b"\xff\xfe{}", 1),
        (b'{"a": ' + b"1" * 10_000 + b"}", 1),
    ],
)
def test_json_that_is_no_notebook_is_a_finding(data: bytes, line: int) -> None:
    (found,) = cells_of(data, "a.ipynb")
    assert found.problem is not None
    assert (found.problem.code, found.problem.line, found.problem.cell) == ("TPU001", line, None)
    assert found.problem.message.startswith("This notebook does not parse: ")


@pytest.mark.parametrize(
    "cells",
    [[], [None], [[]], [{}], [{"cell_type": "markdown"}], [{"cell_type": 3, "source": 4}], ["code"]],
)
def test_notebooks_without_code(cells: list[Any]) -> None:
    assert from_json({"cells": cells}) == []


@pytest.mark.parametrize("source", [None, 3, {"a": 1}, [1, None, "x"], True])
def test_a_source_that_is_no_text(source: Any) -> None:
    (found,) = from_json({"cells": [{"cell_type": "code", "source": source}]})
    assert found.text in ("", "x")


def test_read_file(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"x = 1\r\n")
    (found,) = read_file(path)
    assert (found.path, found.number, found.text) == (str(path), None, "x = 1\n")
    with pytest.raises(OSError):
        read_file(tmp_path)
    with pytest.raises(OSError):
        read_file(tmp_path / "none.py")


def test_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"import os\nos.mkdir({str(tmp_path / 'made')!r})\nraise SystemExit\n")
    read_file(path)
    assert os.listdir(tmp_path) == ["a.py"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('["x\\n",\n"y\\n",\n\n"z"]', [3, 4, 6]),
        ('["x = ",\n"1\\ny\\n",\n"z\\n"]', [3, 4, 5]),
        ('["x\\n", "y"]', [3, 3]),
        ('\n"x\\ny"', [4, 4]),
        ("[]", [3]),
        ('["",\n"x"]', [4]),
    ],
)
def test_the_lines_of_cells_in_the_file(source: str, lines: list[int]) -> None:
    text = f'{{"cells": [{{"cell_type": "markdown"}},\n{{"cell_type": "code",\n"source": {source}}}]}}'
    assert notebook_lines(text) == [lines]
    assert notebook_lines('{"worksheets": [{}, ' + text.replace('"source"', '"input"') + "]}") == [lines]
