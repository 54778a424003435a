"""No input makes the checker crash: generated text, mutated code, and the standard library's own files."""

from __future__ import annotations

import ast
import json
import random
import sysconfig
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check.own_rules import RULES as OWN
from tests.check.own_rules import notebook
from tpu_magics.check import check_cells, fixes, ipython
from tpu_magics.check.cells import CodeCell, cell_of, cells_of, notebook_lines
from tpu_magics.check.config import CheckConfig, Rules
from tpu_magics.check.engine import check_cells_of_file
from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.formats import FORMATS, CheckReport
from tpu_magics.check.rules import RULES

STDLIB = Path(sysconfig.get_path("stdlib"))
FILES = sorted(STDLIB.glob("*.py")) + sorted((STDLIB / "test").glob("test_[a-f]*.py"))
CHOSEN = random.Random(5).sample(FILES, 40)
SAMPLE = [*CHOSEN[:8], *(pytest.param(path, marks=pytest.mark.long) for path in CHOSEN[8:])]
CONFIG = CheckConfig(Rules(RULES))

# What cells are made of, so that pieces meet in ways that nobody thought of.
PIECES = st.sampled_from(
    [
        *(
            "import torch\n",
            "import torch_xla.core.xla_model as xm\n",
            "import tensorflow as tf\n",
            "x",
            " ",
            "\n",
            "    ",
        ),
        *(
            "\\",
            "\\\n",
            "%",
            "%%",
            "!",
            "?",
            "??",
            "%time ",
            "%%time\n",
            "%%tpu_train f\n",
            "%%bash\n",
            "!ls\n",
            "= !ls",
        ),
        *(
            "'",
            '"',
            "'''",
            '"""',
            "#",
            "# noqa",
            "# noqa: TPU101, ",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ":",
            ";",
            ",",
            "=",
            ".",
        ),
        *(
            "if x > 0:\n",
            "for a in b:\n",
            "while loss:\n",
            "def f(x):\n",
            "class A(nn.Module):\n",
            "return x\n",
            "lambda: ",
        ),
        *(
            "torch.where(m)",
            "x[m > 0]",
            "loss.item()",
            "x.view(-1)",
            "print(loss)",
            "f'{loss}'",
            "await y",
            "yield",
            "*",
            "**",
        ),
        *(
            "@tf.function(jit_compile=True)\n",
            "model.train()\n",
            "loss = model(x)\n",
            "loss.backward()\n",
            "xm.mark_step()\n",
        ),
        *(
            ">>> ",
            "... ",
            "In [1]: ",
            "\t",
            "\r",
            "\r\n",
            "\x0c",
            "\0",
            "\ufeff",
            "é",
            "日本",
            "😀",
            "\ud800",
            "\u2028",
            "1",
            "-",
        ),
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=30).map("".join))


def looked_at(cells: list[CodeCell]) -> list[Finding]:
    """Everything that a check does with cells, and what holds of every finding."""
    found = check_cells_of_file(cells, CONFIG)
    by_place = {(cell.path, cell.number): cell for cell in cells}
    for one in found:
        lines = by_place[one.path, one.cell].lines
        assert 1 <= one.line <= len(lines)
        assert 1 <= one.column <= len(lines[one.line - 1]) + 1
        assert (one.end_line, one.end_column) >= (one.line, one.column)
        assert one.message
        assert one.code != "TPU003", one
    report = CheckReport(found, 1, rules=RULES)
    for show in FORMATS.values():
        show(report)
    for cell in cells:
        assert (cell.tree is None) <= (cell.problem is not None)
    return found


@given(TEXTS, st.sampled_from(["a.py", "a.ipy", "In [1]"]))
def test_any_text(text: str, path: str) -> None:
    looked_at([cell_of(text, path)])


@given(TEXTS)
def test_any_cell_is_masked_line_by_line(text: str) -> None:
    masked = ipython.mask(text)
    assert len(masked.lines) == text.count("\n") + 1
    assert all(1 <= magic.line <= len(masked.lines) for magic in masked.line_magics)


@given(st.lists(TEXTS, max_size=5))
def test_any_cells_together(texts: list[str]) -> None:
    looked_at([cell_of(text, "a.ipynb", number) for number, text in enumerate(texts, start=1)])


@given(st.binary(max_size=300), st.sampled_from(["a.py", "a.ipynb"]))
def test_any_bytes(data: bytes, path: str) -> None:
    looked_at(cells_of(data, path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["code", "source"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["cells", "cell_type", "source", "metadata", "worksheets", "x"]), inner, max_size=5
        )
    ),
    max_leaves=20,
)
CELL = st.fixed_dictionaries({"cell_type": st.just("code"), "source": JSON | TEXTS | st.lists(TEXTS, max_size=4)})


@given(JSON | st.fixed_dictionaries({"cells": st.lists(CELL | JSON, max_size=4)}))
def test_any_json(found: Any) -> None:
    data = json.dumps(found)
    cells = cells_of(data.encode(), "a.ipynb")
    looked_at(cells)
    if cells and cells[0].number:
        assert len(notebook_lines(data)) == len(cells)


# -- fixes ----------------------------------------------------------------------------------------------------------

CODE = st.lists(
    st.sampled_from(
        ["red(1)", "x = 1", "grey(red(2))", "y = '''é\n'''; red(3)", "# green(", "blue(1)", "", "if red(1):\n  red(2)"]
    )
).map(lambda lines: "import torch\n" + "\n".join(lines) + "\n")


def own(cells: Any) -> list[Finding]:
    return check_cells(cells, OWN)


@given(st.lists(CODE, min_size=1, max_size=4), st.sampled_from([None, 1, 2, "\t"]), st.booleans(), st.booleans())
def test_fixing_a_notebook_is_fixing_its_sources(
    codes: list[str], indent: Any, ascii_only: bool, as_list: bool
) -> None:
    def file(sources: list[str]) -> bytes:
        kept = [source.splitlines(keepends=True) if as_list else source for source in sources]
        return json.dumps(notebook(*kept), indent=indent, ensure_ascii=ascii_only).encode()

    data = file(codes)
    cells = cells_of(data, "a.ipynb")
    fixed = fixes.fix(cells, own)
    assert fixes.new_bytes("a.ipynb", data, fixed) == file([cell.text for cell in fixed.cells])
    assert not fixes.fix(fixed.cells, own).changes
    wanted = [code.replace("red(", "green(").replace("grey(", "gray(") for code in codes]
    assert [cell.text for cell in fixed.cells] == wanted


@given(CODE, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.text("ab(\n'", max_size=4)), max_size=4))
def test_any_edits_leave_code_that_parses(text: str, pieces: list[tuple[int, int, str]]) -> None:
    def place(ctx: int) -> tuple[int, int]:
        before = text[: min(ctx, len(text))]
        return before.count("\n") + 1, len(before) - before.rfind("\n") - 1

    edits = [Edit(place(min(one, other)), place(max(one, other)), new) for one, other, new in pieces]
    findings = [
        Finding("TPU901", "values", "a.py", None, *edit.start, *edit.end, "m", "w", "f", edits=(edit,))
        for edit in edits
    ]
    rounds = iter([findings])
    fixed = fixes.fix([cell_of(text, "a.py")], lambda _: next(rounds, []))
    ast.parse(fixed.cells[0].text)
    fixes.diff(fixed)


# -- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_a_real_file_is_read_as_python_reads_it_and_clean(path: Path) -> None:
    """The standard library has nothing to do with TPUs, so nothing is found in it."""
    data = path.read_bytes()
    (cell,) = cells_of(data, str(path))
    with tokenize.open(path) as file:
        text = file.read()
    assert (cell.text, cell.problem) == (text, None)
    assert looked_at([cell]) == []


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_a_real_file_as_a_cell_below_a_shell_line(path: Path) -> None:
    """The path through IPython's syntax leaves Python alone, whatever strings and brackets it has."""
    with tokenize.open(path) as file:
        text = file.read()
    assert ipython.mask("!ls\n" + text).python == "pass\n" + text
    cell = cell_of("!ls\nimport torch\n" + text, "In [1]")
    assert cell.problem is None
    looked_at([cell])


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_a_real_file_with_pieces_torn_out(path: Path) -> None:
    with tokenize.open(path) as file:
        text = file.read()[:20_000]
    chance = random.Random(path.name)
    for _ in range(5):
        start = chance.randrange(len(text) + 1)
        torn = text[:start] + text[start + chance.randrange(200) :]
        looked_at([cell_of("import torch\n" + torn, "In [1]"), cell_of(torn, "In [2]")])
