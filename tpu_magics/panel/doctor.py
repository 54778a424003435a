"""What the doctor found, as text, as HTML and as JSON.

What lives here: what is to be mended first, then all checks by group, one line each. What does not: finding anything
(host/doctor/), and rendering a table (table.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tpu_magics.host.doctor import BROKEN, NOT_AVAILABLE, OK, STATES, WARNING, Check
from tpu_magics.host.doctor.commands import to_shell
from tpu_magics.panel import table as plain
from tpu_magics.panel.table import Row, Table

SCHEMA = 1  # of the JSON
_COUNTED = {BROKEN: "broken", WARNING: "warning", OK: "ok", NOT_AVAILABLE: "not available"}
_SUMMARY = "cursor:pointer;margin:.6em 0 .2em 0"


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found. `checks`: all; `done`: what `--fix` did; `left`: what it was to do and left, with the
    reason; `fixed`: whether it was asked to; `shell`: commands are a shell's, not a notebook's."""

    checks: tuple[Check, ...]
    done: tuple[str, ...] = ()
    left: tuple[tuple[Check, str], ...] = ()
    fixed: bool = False
    shell: bool = False

    @property
    def broken(self) -> tuple[Check, ...]:
        """What stops training."""
        return tuple(check for check in self.checks if check.state == BROKEN)

    @property
    def ill(self) -> tuple[Check, ...]:
        """What is broken, then what is a warning."""
        return tuple(sorted((one for one in self.checks if one.state in (BROKEN, WARNING)), key=_order))

    def command(self, check: Check) -> str:
        """The command that mends it, as it is typed here."""
        return to_shell(check.command) if self.shell else check.command

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def _order(check: Check) -> int:
    return STATES.index(check.state)


def to_text(found: Diagnosis) -> str:
    """At most 100 columns wide."""
    tables = [*_first(found), _all(found.checks)]
    return "\n\n".join(plain.to_text(table) for table in tables)


def to_html(found: Diagnosis) -> str:
    """One `<div>`: all checks are folded away where something is to be mended."""
    parts = [plain.to_html(table) for table in _first(found)]
    is_open = "" if found.ill else " open"
    listed = plain.to_html(_all(found.checks, title=""))
    parts.append(f'<details{is_open}><summary style="{_SUMMARY}">{_title(found.checks)}</summary>{listed}</details>')
    return f'<div class="tpu-magics-doctor">{"".join(parts)}</div>'


def to_json(found: Diagnosis) -> str:
    """For programs: `{"schema", "counts", "checks": [...], "done": [...], "left": [...]}`."""
    counts = Counter(check.state for check in found.checks)
    record = {
        "schema": SCHEMA,
        "counts": {state: counts[state] for state in STATES},
        "checks": [_record(found, check) for check in found.checks],
        "done": list(found.done),
        "left": [{**_record(found, check), "reason": reason} for check, reason in found.left],
    }
    return json.dumps(record, indent=2, ensure_ascii=False)


def _record(found: Diagnosis, check: Check) -> dict[str, object]:
    names = ("group", "name", "state", "what", "why")
    told: dict[str, object] = {name: getattr(check, name) for name in names}
    return {**told, "command": found.command(check), "then": check.then, "fixable": _marked(found, check)}


# -- the tables ----------------------------------------------------------------------------------------------------


def _first(found: Diagnosis) -> Iterator[Table]:
    """What was done, and what is to be mended."""
    if found.fixed:
        yield Table("Done by --fix", None, tuple(_done(found)))
    if found.ill:
        fixable = any(_marked(found, check) for check in found.ill)
        doctor = "python -m tpu_magics doctor" if found.shell else "%tpu_doctor"
        notes = (f"What is marked (--fix) is safe to be done by itself: {doctor} --fix",) if fixable else ()
        title = "Left to you" if found.fixed else "To mend"
        yield Table(title, None, tuple(_ill(found, check) for check in found.ill), notes)


def _marked(found: Diagnosis, check: Check) -> bool:
    """Whether `--fix` would mend it now."""
    return check.mending is not None and not found.fixed and not (found.shell and check.mending.of_session)


def _done(found: Diagnosis) -> Iterator[Row]:
    for said in found.done or ("Nothing: there was nothing to do that is safe without asking.",):
        yield Row((said,))
    for check, reason in found.left:
        yield Row((f"Left: {check.what} {reason}",))


def _ill(found: Diagnosis, check: Check) -> Row:
    todo = ", then ".join(part for part in (found.command(check), check.then) if part)
    marked = " (--fix)" if _marked(found, check) else ""
    lines = [check.what, f"Why: {check.why}" if check.why else "", f"To mend it{marked}: {todo}" if todo else ""]
    return Row((check.name, "\n".join(filter(None, lines))), check.state)


def _all(checks: Sequence[Check], title: str | None = None) -> Table:
    rows: list[Row] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        rows += [Row((group,), heading=True), *(_line(check) for check in members)]
    return Table(_title(checks) if title is None else title, None, tuple(rows))


def _line(check: Check) -> Row:
    why = f" {check.why}" if check.state == NOT_AVAILABLE and check.why else ""
    return Row((check.name, f"{check.what}{why}"), check.state)


def _title(checks: Sequence[Check]) -> str:
    counts = Counter(check.state for check in checks)
    said = [f"{counts[state]} {_plural(word, counts[state])}" for state, word in _COUNTED.items() if counts[state]]
    return f"tpu_magics: {len(checks)} checks: {', '.join(said)}"


def _plural(word: str, count: int) -> str:
    return f"{word}s" if word == "warning" and count > 1 else word
