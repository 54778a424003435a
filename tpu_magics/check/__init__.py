"""Rules of XLA, and of launching on a TPU, found in code before it runs.

What lives here: the checker's front door. What does not: one rule (rules/), the walk (engine.py, flow.py), files and
notebooks (cells.py), and the command line (command.py). Standard library only; no code is ever imported or run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tpu_magics.check.finding import Edit, Finding

if TYPE_CHECKING:
    from tpu_magics.check.cells import Cell

__all__ = ["Edit", "Finding", "check_cells", "check_chosen", "check_text"]


def check_cells(cells: Sequence[Cell], rules: Sequence[ModuleType] | None = None) -> list[Finding]:
    """The findings of cells that share their names (a notebook's, or one file), in order."""
    from tpu_magics.check.engine import check_program

    if rules is None:
        from tpu_magics.check.rules import RULES

        rules = RULES
    return check_program(cells, rules)


def check_chosen(cells: Sequence[Cell], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Finding]:
    """The findings that comments (`# noqa`) and the configuration of the working directory leave.

    Args:
        cells: cells that share their names.
        select: only these rules, as codes, beginnings of codes, groups or names; instead of the configuration's.
        ignore: not these, besides the configuration's.

    Raises:
        TpuMagicsError: a word names no rule, or `[tool.tpu_magics]` cannot be followed.
    """
    from tpu_magics.check.command import check_cells_of_file
    from tpu_magics.check.config import Configs, Rules
    from tpu_magics.check.rules import RULES

    rules = Rules(tuple(RULES))
    chosen = Configs(rules, rules.checked(select, "--select"), rules.checked(ignore, "--ignore"))
    return check_cells_of_file(cells, chosen.of(Path.cwd()))


def check_text(text: str, path: str = "<text>", rules: Sequence[ModuleType] | None = None) -> list[Finding]:
    """The findings of one Python file's text."""
    from tpu_magics.check.cells import cell_of

    return check_cells([cell_of(text, path)], rules)
