"""The rule check before a run: the findings are written to the run folder.

Without `--strict`, neither a finding nor an error of the checker stops the run.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_magics.check.finding import Finding
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.runs.events import RuleFinding, Site
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.writer import EventWriter

SHOWN = 8  # findings named in the error of --strict
KEPT = 200  # findings in a run folder


def check_code(function: Any, script: Path | None, strict: bool) -> list[Finding]:
    """The findings in the code of the run: the script, or the cells that the function uses, without definitions that
    were replaced later. Raises TpuMagicsError if `strict` and a rule is broken.

    Args:
        function: the training function; an object without a name for plain statements.
        script: the script that runs instead of a function.
        strict: whether a broken rule stops the run.
    """
    try:
        findings = _findings(function, script)
    except Exception as error:  # a bug in the checker must not stop the run
        if strict:
            raise TpuMagicsError(
                f"The run was not started: the rule check failed ({type(error).__name__}: {error}).",
                "--strict requires the rule check.",
                "Fix the problem in the message, or train without --strict.",
            ) from error
        session.current.notebook.say(f"The rule check failed ({type(error).__name__}: {error}).")
        return []
    broken = [one for one in findings if not one.advice]
    if strict and broken:
        raise _strict_error(broken)
    return findings


def _findings(function: Any, script: Path | None) -> list[Finding]:
    from tpu_magics.check import check_with_config
    from tpu_magics.check.cells import read_file, without_redefined
    from tpu_magics.check.reachability import reachable_findings

    if script is not None:
        return check_with_config(read_file(script))
    name = str(getattr(function, "__name__", ""))
    cells = without_redefined(session.current.notebook.checked_cells(), name, _cell_of(function))
    return reachable_findings(check_with_config(cells), cells, name)


def _cell_of(function: Any) -> str:
    """The cell that defines a function, as "In [n]"; "" if none does."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return session.current.notebook.cell_names().get(code.co_filename, "") if code is not None else ""


def _strict_error(broken: Sequence[Finding]) -> TpuMagicsError:
    rules = "a rule" if len(broken) == 1 else f"{len(broken)} rules"
    lines = [line for one in broken[:SHOWN] for line in _finding_lines(one)]
    if len(broken) > SHOWN:
        lines.append(f"... and {len(broken) - SHOWN} more.")
    return TpuMagicsError(
        f"The run was not started: the code breaks {rules}.",
        "With --strict a broken rule stops the run. Without it the panel lists these findings.",
        "Fix the lines below, or suppress a finding with a comment (`# noqa: CODE`). %tpu_check explains each finding.",
        lines,
    )


def _finding_lines(one: Finding) -> tuple[str, ...]:
    code = f"    {one.source.strip()}" if one.source.strip() else ""
    return tuple(filter(None, (f"{one.code} {one.place}: {one.message}", code, f"    {one.fix}")))


def record_findings(folder: RunFolder, findings: Sequence[Finding]) -> None:
    """Write the findings into the run folder."""
    if not findings:
        return
    ids = session.current.notebook.cell_ids()
    writer = EventWriter(folder.supervisor_path, 0)
    for number, one in enumerate(findings[:KEPT]):
        writer.write(rule_finding(number, one, ids.get(one.path, "")))
    writer.close()


def rule_finding(number: int, one: Finding, cell_id: str) -> RuleFinding:
    """A finding as an event. `number`: of the finding, from 0; `cell_id`: the front end's, or ""."""
    site = Site(number, one.path, one.line, "", one.source.strip()[:400], cell_id)
    return RuleFinding(
        round(time.time(), 3), 0, one.code, one.group, site, one.column, one.message, one.why, one.fix, one.advice
    )
