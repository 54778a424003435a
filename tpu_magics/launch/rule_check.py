"""The rules before a run: the cells so far are checked, and what was found stands in the run folder.

What lives here: when the checker is asked, and what becomes of its findings. What does not: the rules (check/), and how
findings look (panel/). A check never stops a run, unless `--strict` asks for it; a fault of the checker never does.
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
    """The findings of the code that is about to run: the script's, or those of the cells that the function reaches,
    without definitions that a later one of the same name has replaced. Raises TpuMagicsError for broken
    rules where `strict`.

    Args:
        function: the function that is trained; anything without a name for plain statements.
        script: the file that is run instead of a function.
        strict: whether a broken rule refuses the run.
    """
    try:
        found = _findings(function, script)
    except Exception as error:  # a fault of ours must not cost a run
        if strict:
            raise TpuMagicsError(
                f"Nothing was started: the rules could not be checked ({type(error).__name__}: {error}).",
                "--strict asks for a check before the run.",
                "Mend what the message names, or train without --strict.",
            ) from error
        session.current.notebook.say(f"The rules could not be checked ({type(error).__name__}: {error}).")
        return []
    broken = [one for one in found if not one.advice]
    if strict and broken:
        raise _refused(broken)
    return found


def _findings(function: Any, script: Path | None) -> list[Finding]:
    from tpu_magics.check import check_chosen
    from tpu_magics.check.cells import read_file, without_replaced
    from tpu_magics.check.reached import of_the_run

    if script is not None:
        return check_chosen(read_file(script))
    name = str(getattr(function, "__name__", ""))
    cells = without_replaced(session.current.notebook.checked_cells(), name, _cell_of(function))
    return of_the_run(check_chosen(cells), cells, name)


def _cell_of(function: Any) -> str:
    """The cell that defines a function, as "In [n]"; "" where none does."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return session.current.notebook.cell_names().get(code.co_filename, "") if code is not None else ""


def _refused(broken: Sequence[Finding]) -> TpuMagicsError:
    rules = "a rule" if len(broken) == 1 else f"{len(broken)} rules"
    lines = [line for one in broken[:SHOWN] for line in _finding_lines(one)]
    if len(broken) > SHOWN:
        lines.append(f"... and {len(broken) - SHOWN} more.")
    return TpuMagicsError(
        f"Nothing was started: the code breaks {rules} of XLA or of launching.",
        "--strict was given. Without it the run would start, with these findings folded in its panel.",
        "Mend the lines below, or silence one that is meant with a comment (`# noqa: CODE`). "
        "%tpu_check shows them with their reasons.",
        lines,
    )


def _finding_lines(one: Finding) -> tuple[str, ...]:
    code = f"    {one.source.strip()}" if one.source.strip() else ""
    return tuple(filter(None, (f"{one.code} {one.place}: {one.message}", code, f"    {one.fix}")))


def record_findings(folder: RunFolder, found: Sequence[Finding]) -> None:
    """Write the findings into the run folder."""
    if not found:
        return
    ids = session.current.notebook.cell_ids()
    writer = EventWriter(folder.supervisor_path, 0)
    for number, one in enumerate(found[:KEPT]):
        writer.write(rule_finding(number, one, ids.get(one.path, "")))
    writer.close()


def rule_finding(number: int, one: Finding, cell_id: str) -> RuleFinding:
    """A finding as records have it. `number`: of the finding, from 0; `cell_id`: the front end's, or ""."""
    site = Site(number, one.path, one.line, "", one.source.strip()[:400], cell_id)
    return RuleFinding(
        round(time.time(), 3), 0, one.code, one.group, site, one.column, one.message, one.why, one.fix, one.advice
    )
