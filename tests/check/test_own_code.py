"""Our own code and tutorials follow the rules, or suppress a rule on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def test_the_package_and_its_tutorials_keep_the_rules() -> None:
    command = [sys.executable, "-m", "tpu_magics", "check", "tpu_magics", "notebooks", "scripts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial_about_the_rules_breaks_them_and_is_fixed_in_it() -> None:
    from tpu_magics.check import check_cells
    from tpu_magics.check.cells import read_file

    cells = read_file(ROOT / "notebooks" / "05_rules.ipynb")
    found = check_cells(cells)
    broken = {one.cell for one in found}
    [first] = [cell.number for cell in cells if "def training_function" in cell.text]
    assert broken == {first}
    assert {one.code for one in found} == {"TPU102", "TPU201", "TPU301", "TPU302"}
