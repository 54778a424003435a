"""The checklist of `%tpu_check --ready` as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tpu_magics.launch.checklist import FAILED, PASSED, UNKNOWN, ChecklistItem
from tpu_magics.panel.table import Row, Table

_STATES = {PASSED: "passed", FAILED: "failed", UNKNOWN: "unknown"}


def ready_table(items: Sequence[ChecklistItem]) -> Table:
    """One row for each item: its state, the question, the evidence."""
    count = Counter(item.state for item in items)
    said = ", ".join(f"{count[state]} {state}" for state in (PASSED, FAILED, UNKNOWN) if count[state])
    rows = tuple(Row((item.question, item.evidence), _STATES[item.state]) for item in items)
    notes = ("%tpu_check shows each finding with its reason and fix.",) if count[FAILED] else ()
    return Table(f"Ready for a TPU? {said}", ("item", "evidence"), rows, notes)
