"""The findings for the JupyterLab extension: from cells to findings that name their cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpu_magics.check.finding import Finding
from tpu_magics.magics import lab
from tpu_magics.panel.messages import FindingsMessage
from tpu_magics.panel.requests import CheckedCell
from tpu_magics.runs.events import RuleFinding

MOST = 500


def check_notebook(cells: Sequence[CheckedCell]) -> tuple[list[RuleFinding], str]:
    """The findings of a notebook's code cells, and what was looked at, in words."""
    from tpu_magics.check import check_chosen
    from tpu_magics.check.cells import cell_of
    from tpu_magics.launch.checking import rule_finding

    paths = [_path(cell, at) for at, cell in enumerate(cells, start=1)]
    read = [cell_of(cell.source, path, at) for at, (cell, path) in enumerate(zip(cells, paths, strict=True), start=1)]
    found = check_chosen(read)
    ids = [cells[one.cell - 1].id if one.cell else "" for one in found]
    told = [rule_finding(at, one, cell_id) for at, (one, cell_id) in enumerate(zip(found, ids, strict=True))]
    with_code = sum(bool(cell.source.strip()) for cell in cells)
    return told, f"{with_code} cell{'s' * (with_code != 1)} of the notebook"


def _path(cell: CheckedCell, at: int) -> str:
    """As a person finds the cell: by its number, where it has run."""
    return f"In [{cell.number}]" if cell.number is not None else f"cell {at}"


def tell_findings(findings: Sequence[Finding], checked: str, ids: Mapping[str, str]) -> None:
    """What %tpu_check has found."""
    if lab.current is None:
        return
    from tpu_magics.launch.checking import rule_finding

    told = [rule_finding(at, one, ids.get(one.path, "")) for at, one in enumerate(findings[:MOST])]
    message = FindingsMessage(tuple(told), checked, None)
    lab.current.tell(message)
    lab.current.kept = None if lab.current.heard else message
