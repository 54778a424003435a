"""The tutorials as they are saved, and the script that runs one headless. nbval runs their cells (`make test`)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests._notebooks import uses_tensorflow

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIALS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_tutorials_are_numbered_from_one() -> None:
    """Two that are for the same moment, such as rules and preflight, have one number."""
    numbers = [re.fullmatch(r"(\d\d)_[a-z_]+", path.stem) for path in TUTORIALS]
    assert all(numbers)
    found = sorted({int(match[1]) for match in numbers if match})
    assert found == list(range(1, len(found) + 1))


@pytest.mark.parametrize("path", [*TUTORIALS, *sorted((ROOT / "notebooks/guides").glob("*.ipynb"))], ids=lambda p: p.stem)
def test_a_notebook_is_saved_clean(path: Path) -> None:
    """Valid, with the outputs that nbval compares and no others, and with an assertion of what it claims."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == ("tpu-magics-tensorflow" if uses_tensorflow(path) else "python3")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        compared = "# NBVAL_CHECK_OUTPUT" in cell.source
        assert bool(cell.outputs) is compared, f"{cell.id}: outputs are kept only where nbval compares them"
        assert (cell.execution_count is not None) is compared, "nbval compares outputs only of cells that were run"
        assert "NBVAL_SKIP" not in cell.source and "NBVAL_RAISES" not in cell.source
    assert any("assert " in cell.source for cell in code), "a tutorial asserts what it claims"


def run(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "run_notebook.py"), str(source), str(target)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.process
def test_the_script_tells_each_cell_and_leaves_the_executed_notebook(tmp_path: Path) -> None:
    cells = [new_markdown_cell("# Two cells"), new_code_cell("# Six.\nx = 6\nprint('six')"), new_code_cell("x * 7")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "two.ipynb")
    done = run(tmp_path / "two.ipynb", tmp_path / "out" / "two.ipynb")
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines() if not line.strip().startswith("[")]
    assert lines == ["cell 1 of 2: x = 6", "six", "cell 2 of 2: x * 7", "42"]
    executed = nbformat.read(tmp_path / "out" / "two.ipynb", as_version=4)
    assert executed.cells[2].outputs[0].data["text/plain"] == "42"


@pytest.mark.process
def test_the_script_leaves_the_notebook_where_a_cell_fails(tmp_path: Path) -> None:
    cells = [new_code_cell("print('here')"), new_code_cell("1 / 0"), new_code_cell("print('never')")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "bad.ipynb")
    done = run(tmp_path / "bad.ipynb", tmp_path / "executed.ipynb")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "never" not in done.stdout
    executed = nbformat.read(tmp_path / "executed.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].text == "here\n"
    assert executed.cells[1].outputs[0].ename == "ZeroDivisionError"
