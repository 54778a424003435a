"""`%tpu_check` and `%%tpu_check`: cells -> findings -> a table."""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.check import check_with_config, fixes
from tpu_magics.check.cells import CodeCell, cell_of, read_file
from tpu_magics.check.engine import code_spans
from tpu_magics.check.finding import Finding
from tpu_magics.check.reachability import reachable_findings
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.launch.rule_check import FAILED, PASSED, UNKNOWN, ChecklistItem, checklist
from tpu_magics.magics import lab
from tpu_magics.magics.display import show, show_table
from tpu_magics.panel.findings import findings_html, findings_text
from tpu_magics.panel.messages import FindingsMessage
from tpu_magics.panel.table import Row, Table

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook


MOST_TOLD = 500  # findings that the JupyterLab extension gets


def run(notebook: ShellNotebook, found: argparse.Namespace, cell: str | None) -> None:
    """Check the cells or names, and show the findings."""
    if found.unsafe_fixes and not (found.fix or found.diff):
        raise TpuMagicsError(*fixes.UNSAFE_ALONE)
    cells = notebook.checked_cells()
    if cell is not None:
        return _check_cell(notebook, found, cells)
    if found.ready:
        return _ready(notebook, found, cells)
    findings, looked_at, shown = _requested(notebook, found, cells)
    if found.fix or found.diff:
        return _show_changes(shown, found, findings)
    _show(notebook, findings, looked_at)
    return None


def _check_cell(notebook: ShellNotebook, found: argparse.Namespace, cells: Sequence[CodeCell]) -> None:
    """This cell alone, with what the others define; it is not run."""
    if not cells or cells[-1].magic != "tpu_check":
        cells = [*cells, cell_of("", f"In [{notebook.cell_number()}]")]
    own = cells[-1]
    findings = [one for one in _findings(cells, found) if one.path == own.path]
    if found.diff:
        return _show_changes(cells, found, findings)
    if found.fix:
        return _replace(notebook, cells, found, findings)
    _show(notebook, findings, "this cell (it was not run)")
    return None


def _findings(cells: Sequence[CodeCell], found: argparse.Namespace) -> list[Finding]:
    select, ignore = (
        tuple(filter(None, (words or "").replace(" ", "").split(","))) for words in (found.select, found.ignore)
    )
    try:
        return check_with_config(cells, select, ignore)
    except TpuMagicsError:
        raise
    except Exception as fault:
        raise TpuMagicsError(
            f"The check failed with {type(fault).__name__}: {fault}.",
            "This is a bug in tpu_magics, not in your code. Nothing was run or changed.",
            "Please report it with the cell that causes it.",
        ) from fault


def _requested(
    notebook: ShellNotebook, found: argparse.Namespace, cells: Sequence[CodeCell]
) -> tuple[list[Finding], str, Sequence[CodeCell]]:
    if not found.names:
        number = sum(_has_code(cell) for cell in cells)
        looked_at = plural(number, "cell", "") if number else "no cell: none with code has run yet"
        return _findings(cells, found), looked_at, cells
    findings: list[Finding] = []
    shown: list[CodeCell] = []
    for name in found.names:
        home = _home(name, cells, notebook.namespace)
        parts = code_spans(home, name)
        findings += [one for one in _findings(home, found) if any(part.holds(one) for part in parts)]
        shown += [cell for cell in home if cell not in shown]
    return list(dict.fromkeys(findings)), f"{', '.join(found.names)} and what it calls", shown


def _has_code(cell: CodeCell) -> bool:
    """Whether the cell has more than magics."""
    return cell.tree is None or any(not _is_masked(node) for node in cell.tree.body)


def _is_masked(node: ast.stmt) -> bool:
    """Whether the node replaces a line of IPython syntax."""
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _home(name: str, cells: Sequence[CodeCell], namespace: dict[str, Any]) -> Sequence[CodeCell]:
    """The cells, or the file, that define this name."""
    if code_spans(cells, name):
        return cells
    value: Any = namespace.get(name.partition(".")[0])
    path = _file_of(value)
    if path is not None and code_spans(home := read_file(path), name):
        return home
    first = name.partition(".")[0]
    why = "The notebook has no such name either."
    if value is not None:
        why = f"{first} is a {type(value).__name__}; definitions in libraries are not checked."
    raise TpuMagicsError(
        f"No cell defines a function or class {name}.",
        why,
        "Name a function or class (`Net.forward` for a method), or leave out the name to check all cells.",
    )


def _file_of(value: object) -> Path | None:
    """The Python file that a function or class was imported from."""
    module = sys.modules.get(getattr(value, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    return Path(file) if file and file.endswith(".py") else None


# -- showing -------------------------------------------------------------------------------------------------------


def _show(notebook: ShellNotebook, findings: Sequence[Finding], looked_at: str) -> None:
    _tell_lab(findings, looked_at, notebook.cell_ids())
    plain = findings_text(findings, looked_at)
    show({"text/plain": plain, "text/html": findings_html(findings, looked_at)})


def _tell_lab(findings: Sequence[Finding], checked: str, ids: Mapping[str, str]) -> None:
    """What %tpu_check has found."""
    if lab.current is None:
        return
    from tpu_magics.launch.rule_check import rule_finding
    from tpu_magics.panel.page_problems import problem_of

    told = [problem_of(rule_finding(at, one, ids.get(one.path, ""))) for at, one in enumerate(findings[:MOST_TOLD])]
    lab.current.tell_or_keep(FindingsMessage(tuple(told), checked, None))


def _fixed_cells(cells: Sequence[CodeCell], found: argparse.Namespace, wanted: Sequence[Finding]) -> fixes.FixResult:
    """The cells with the mechanical fixes of the wanted findings, repeated until none is left."""
    keys = {(one.path, one.cell, one.code) for one in wanted}

    def again(cells: Sequence[CodeCell]) -> list[Finding]:
        return [one for one in _findings(cells, found) if (one.path, one.cell, one.code) in keys]

    return fixes.fix(cells, again, wanted, found.unsafe_fixes)


def _show_changes(cells: Sequence[CodeCell], found: argparse.Namespace, findings: Sequence[Finding]) -> None:
    fixed = _fixed_cells(cells, found, findings)
    if found.diff:
        text = fixes.diff(fixed)
    else:
        text = "\n\n".join(f"# {cells[index].path}, fixed:\n{source}" for index, source in fixed.changes.items())
    print(text or f"There is {_no_fix(findings)}.", flush=True)


def _no_fix(findings: Sequence[Finding]) -> str:
    if any(one.unsafe for one in findings):
        return "no automatic fix, but one that may change results, with --unsafe-fixes"
    return "no automatic fix"


def _replace(
    notebook: ShellNotebook, cells: Sequence[CodeCell], found: argparse.Namespace, findings: Sequence[Finding]
) -> None:
    """Replace this cell by the fixed one, without the magic's own line."""
    fixed = _fixed_cells(cells, found, findings)
    text = fixed.changes.get(len(cells) - 1)
    if text is None:
        _show(notebook, findings, f"this cell (it was not run; there is {_no_fix(findings)})")
        return
    lines = text.split("\n")
    at = next((number for number, line in enumerate(lines) if line.lstrip().startswith("%%tpu_check")), None)
    if at is not None:
        del lines[at]
    notebook.shell.set_next_input("\n".join(lines), replace=True)
    left = [one for one in _findings(fixed.cells, found) if one.path == cells[-1].path]
    _show(notebook, left, f"the fixed cell ({fixed.count} fixed; run it now)")


def _ready(notebook: ShellNotebook, found: argparse.Namespace, cells: Sequence[CodeCell]) -> None:
    """The checklist; with a NAME, for the code that its training uses."""
    if found.select or found.ignore:
        raise TpuMagicsError(
            "--ready cannot be combined with --select, --migrate or --ignore.",
            "The checklist needs all rules.",
            "Leave them out; `# noqa: CODE` silences a finding at its line.",
        )
    if len(found.names) > 1:
        raise TpuMagicsError(
            f"--ready takes one NAME, not {len(found.names)}.",
            "The checklist is for one training.",
            "Name its function.",
        )
    findings = _findings(cells, found)
    for name in found.names:
        home = _home(name, cells, notebook.namespace)
        findings = reachable_findings(_findings(home, found), home, name)
    show_table(ready_table(checklist(cells, findings, *found.names)))


# -- the checklist of --ready ---------------------------------------------------------------------------------------

_STATES = {PASSED: "passed", FAILED: "failed", UNKNOWN: "unknown"}


def ready_table(items: Sequence[ChecklistItem]) -> Table:
    """One row for each item: its state, the question, the evidence."""
    count = Counter(item.state for item in items)
    said = ", ".join(f"{count[state]} {state}" for state in (PASSED, FAILED, UNKNOWN) if count[state])
    rows = tuple(Row((item.question, item.evidence), _STATES[item.state]) for item in items)
    notes = ("%tpu_check shows each finding with its reason and fix.",) if count[FAILED] else ()
    return Table(f"Ready for a TPU? {said}", ("item", "evidence"), rows, notes)
