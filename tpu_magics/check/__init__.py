"""Static checks of training code against the rules of XLA and of launching on a TPU.

Standard library only; the checked code is never imported or run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.check.finding import Edit, Finding, in_order
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import working_folder

if TYPE_CHECKING:
    from tpu_magics.check.cells import CodeCell
    from tpu_magics.check.rule import Rule

__all__ = [
    "Edit",
    "Finding",
    "check_cells",
    "check_function",
    "check_paths",
    "check_text",
    "check_with_config",
    "rule_name",
    "rule_text",
    "rule_why",
]


def check_cells(cells: Sequence[CodeCell], rules: Sequence[Rule] | None = None) -> list[Finding]:
    """The findings of cells that share their names (a notebook's, or one file), in order. `rules`: default all, but for
    those that are opt-in."""
    from tpu_magics.check.engine import check_program

    if rules is None:
        from tpu_magics.check.rules import RULES

        rules = [rule for rule in RULES if not rule.opt_in]
    return check_program(cells, rules)


def rule_name(code: str) -> str:
    """The name of a rule, e.g. "branch-on-value"; "" where there is no such rule."""
    found = _rule(code)
    return "" if found is None else found.name


def rule_why(code: str) -> str:
    """Why it is bad in most cases, in a sentence; "" where there is no such rule."""
    found = _rule(code)
    return "" if found is None else found.why


def rule_text(code: str) -> str:
    """The documentation of a rule as plain text, with its address on the web where there is one; "" for no rule."""
    from tpu_magics.check.rule import as_text

    found = _rule(code)
    return "" if found is None else as_text(found)


def _rule(code: str) -> Rule | None:
    from tpu_magics.check.config import all_rules

    return all_rules().find(code)


def check_with_config(
    cells: Sequence[CodeCell], select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> list[Finding]:
    """The findings that neither comments (`# noqa`) nor the configuration of the working directory suppress.

    Args:
        cells: cells that share their names.
        select: only these rules, as codes, prefixes, groups or names; instead of the configuration's.
        ignore: without these, in addition to the configuration's.

    Raises:
        TpuMagicsError: a word matches no rule, or `[tool.tpu_magics]` is invalid.
    """
    from tpu_magics.check.config import ConfigFinder, all_rules
    from tpu_magics.check.engine import check_cells_of_file

    rules = all_rules()
    chosen = ConfigFinder(rules, rules.validate(select, "--select"), rules.validate(ignore, "--ignore"))
    return check_cells_of_file(cells, chosen.of(working_folder()))


def check_paths(paths: Sequence[str | Path], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Finding]:
    """The findings of files and folders, as `python -m tpu_magics check` reports them.

    Args:
        paths: .py and .ipynb files, and folders that are walked for them.
        select: only these rules, as codes, prefixes, groups or names.
        ignore: without these.

    Raises:
        TpuMagicsError: a path is missing, a word matches no rule, or a `[tool.tpu_magics]` is invalid.
        OSError: a file cannot be read.
    """
    from tpu_magics.check.cells import read_file
    from tpu_magics.check.config import ConfigFinder, all_rules, files_of
    from tpu_magics.check.engine import check_cells_of_file

    rules = all_rules()
    configs = ConfigFinder(rules, rules.validate(select, "select"), rules.validate(ignore, "ignore"))
    missing: list[str] = []
    files = list(files_of([str(path) for path in paths], configs, missing))
    if missing:
        raise TpuMagicsError(
            f"There is no file or folder {missing[0]}.",
            f"The working directory is {working_folder()}.",
            "Give paths relative to it.",
        )
    return in_order([one for file in files for one in check_cells_of_file(read_file(file), configs.of(file))])


def check_function(function: Callable[..., Any]) -> list[Finding]:
    """The findings of a function or class, and of what it calls in its own file or cell.

    Raises:
        TpuMagicsError: its source is not available.
    """
    from tpu_magics.check.cells import cell_of
    from tpu_magics.check.engine import code_spans

    name = getattr(function, "__qualname__", "")
    try:
        lines = inspect.findsource(function)[0]
        path = inspect.getsourcefile(function) or "<source>"
    except (OSError, TypeError) as error:
        raise TpuMagicsError(
            f"The source of {name or function!r} is not available: {error}.",
            "The check reads source code and does not run it.",
            "Pass a function or class that is defined in a file or a cell.",
        ) from error
    cells = [cell_of("".join(lines), path)]
    parts = code_spans(cells, name)
    return [one for one in check_cells(cells) if any(part.holds(one) for part in parts)]


def check_text(text: str, path: str = "<text>", rules: Sequence[Rule] | None = None) -> list[Finding]:
    """The findings of one Python file's text."""
    from tpu_magics.check.cells import cell_of

    return check_cells([cell_of(text, path)], rules)
