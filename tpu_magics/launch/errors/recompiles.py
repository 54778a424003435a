"""A run that --max-recompiles stopped, with the table of causes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation
from tpu_magics.runs.events import Compile, only
from tpu_magics.runs.reader import Run

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_LIMIT = re.compile(r"--max-recompiles allows (\d+)")
_ROWS = 12


def too_many(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The run had more recompiles than --max-recompiles allows."""
    limit = _LIMIT.search(base.error_text(outcome))
    if limit is None or base.error_type(outcome) != "RecompileLimit":
        return None
    compiles = only(Run(failure.run).events("compile", outcome.rank), Compile) if failure.run else []
    recompiles = [event for event in compiles if event.recompile]
    causes = Counter(event.cause for event in recompiles)
    most = ", ".join(f"{cause} {count} times" if count > 1 else cause for cause, count in causes.most_common())
    unexpected = [event for event in recompiles if not event.expected] or recompiles
    fixes = dict.fromkeys(event.fix for event in unexpected if event.fix)
    return Explanation(
        f"The run was stopped at recompile {len(recompiles) or int(limit[1]) + 1}: --max-recompiles allows {limit[1]}.",
        f"Causes: {most}." if most else "The causes were not recorded.",
        " ".join(list(fixes)[:2]) or "See %tpu_panel, or allow more.",
        tuple(_table(recompiles)),
    )


def _table(recompiles: list[Compile]) -> list[str]:
    lines = [_row(event) for event in recompiles[-_ROWS:]]
    left_out = len(recompiles) - len(lines)
    return ["Recompiles:", *([f"  ... {left_out} earlier"] if left_out else []), *lines] if lines else []


def _row(event: Compile) -> str:
    difference = f": {event.difference[0]}" if event.difference else ""
    return f"  #{event.nth} {event.site.path}, line {event.site.line}: {event.cause}{difference}"


EXPLAINERS = (too_many,)
