"""The doctor's checks as text, HTML and JSON: first the problems with their fixes, then all checks by group."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from tpu_magics.errors import plural
from tpu_magics.host.doctor import BROKEN, NOT_AVAILABLE, OK, STATES, WARNING, Check
from tpu_magics.host.doctor.commands import PYTHON, by_python, to_shell
from tpu_magics.panel import table as plain
from tpu_magics.panel.table import Row, Table

SCHEMA = 1  # of the JSON
_LONG = 160  # characters of a word that are shown
_COUNTED = {BROKEN: "broken", WARNING: "warning", OK: "ok", NOT_AVAILABLE: "n/a"}
_OUTER = "color:inherit;max-width:70em;line-height:1.45;overflow-wrap:break-word"
_TITLE = "font-weight:600;margin:.2em 0 .4em 0"
_HEAD = "font-weight:600"
_INNER = "margin:0 0 .7em 0;padding-left:.8em;border-left:2px solid currentColor"
_CODE = (
    "margin:.2em 0 .3em 0;padding:.3em .6em;color:inherit;background:none;border:1px solid currentColor;"
    "border-radius:.3em;white-space:pre-wrap;overflow-wrap:anywhere"
)
_NOTE = "margin:.3em 0 .6em 0;opacity:.8"
_SUMMARY = "cursor:pointer;margin:.6em 0 .2em 0"


@dataclass(frozen=True)
class Diagnosis:
    """The result of the doctor. `checks`: all; `done`: the fixes that `--fix` applied; `left`: what it did not
    fix, with the reason; `fixed`: whether `--fix` was given; `shell`: commands are for a shell, not a notebook;
    `python`: how a shell calls this interpreter."""

    checks: tuple[Check, ...]
    done: tuple[str, ...] = ()
    left: tuple[tuple[Check, str], ...] = ()
    fixed: bool = False
    shell: bool = False
    python: str = PYTHON

    @property
    def broken(self) -> tuple[Check, ...]:
        """The checks that stop training."""
        return tuple(check for check in self.checks if check.state == BROKEN)

    @property
    def problems(self) -> tuple[Check, ...]:
        """The broken checks, then the warnings."""
        return tuple(sorted((one for one in self.checks if one.state in (BROKEN, WARNING)), key=_order))

    def command(self, check: Check) -> str:
        """The command that fixes it, as it is typed here."""
        return to_shell(check.command, self.python) if self.shell else by_python(check.command, self.python)

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def _order(check: Check) -> int:
    return STATES.index(check.state)


def to_text(found: Diagnosis) -> str:
    """At most 100 columns wide, but for commands, which stay one line."""
    return "\n\n".join([*_text_first(found), plain.to_text(_all(found.checks))])


def _short(sentence: str) -> str:
    """A variable may hold a hundred thousand characters; a sentence shows how each long word begins."""
    return re.sub(rf"(\S{{{_LONG}}})\S+", r"\1…", sentence)


def to_html(found: Diagnosis) -> str:
    """One `<div>`; the list of all checks is folded where there is a problem."""
    is_open = "" if found.problems else " open"
    listed = plain.to_html(_all(found.checks, title=""))
    folded = f'<details{is_open}><summary style="{_SUMMARY}">{_title(found.checks)}</summary>{listed}</details>'
    return f'<div class="tpu-magics-doctor" style="{_OUTER}">{"".join(_html_first(found))}{folded}</div>'


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
    return json.dumps(_printable(record), indent=2)


def _printable(value: Any) -> Any:
    """Variables may hold bytes that are no text, which no reader of JSON takes."""
    if isinstance(value, dict):
        return {key: _printable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return plain.printable(value) if isinstance(value, str) else value


def _record(found: Diagnosis, check: Check) -> dict[str, object]:
    names = ("group", "name", "state", "what", "why")
    told: dict[str, object] = {name: getattr(check, name) for name in names}
    return {**told, "command": found.command(check), "then": check.then, "fixable": _marked(found, check)}


# -- what was done, and the problems ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Item:
    """One problem, in the words that text and HTML share. `label`: stands before the command."""

    head: str
    what: str
    why: str
    label: str
    command: str
    then: str


def _items(found: Diagnosis) -> Iterator[_Item]:
    for check in found.problems:
        command, marked = found.command(check), " (--fix)" if _marked(found, check) else ""
        yield _Item(
            head=f"{plain.state_text(check.state)}: {check.group}, {check.name}",
            what=_short(check.what),
            why=f"Why: {_short(check.why)}" if check.why else "",
            label=f"Fix{marked}:" if command else "",
            command=command,
            then=f"{'Then' if command else 'Fix:'} {check.then}" if check.then else "",
        )


def _marked(found: Diagnosis, check: Check) -> bool:
    """Whether `--fix` would fix it now."""
    return check.fix is not None and not found.fixed and not (found.shell and check.fix.of_session)


def _done(found: Diagnosis) -> list[str]:
    """The fixes that `--fix` applied."""
    said = list(found.done) or ["Nothing: no problem has a fix that is safe to apply automatically."]
    return [_short(line) for line in (*said, *(f"Not fixed: {check.what} {reason}" for check, reason in found.left))]


def _titles(found: Diagnosis) -> tuple[str, str]:
    """The lines above and below the problems."""
    if found.fixed:
        return "Not fixed by --fix", ""
    doctor = "python -m tpu_magics doctor" if found.shell else "%tpu_doctor"
    fixable = any(_marked(found, check) for check in found.problems)
    return "To fix", f"{doctor} --fix applies the fixes marked (--fix)." if fixable else ""


def _text_first(found: Diagnosis) -> Iterator[str]:
    if found.fixed:
        yield "\n".join(["Done by --fix", *(_indented(line) for line in _done(found))])
    if found.problems:
        above, below = _titles(found)
        yield "\n\n".join([above, *map(_text_item, _items(found)), *([below] if below else [])])


def _text_item(item: _Item) -> str:
    lines = [plain.printable(item.head), *(_indented(line) for line in (item.what, item.why, item.label) if line)]
    lines += [f"      {plain.printable(item.command)}"] if item.command else []
    return "\n".join([*lines, *([_indented(item.then)] if item.then else [])])


def _indented(sentence: str) -> str:
    wrapped = plain.to_text(Table("", None, (), (sentence,)), plain.WIDTH - 2)
    return "\n".join(f"  {line}" for line in wrapped.split("\n"))


def _html_first(found: Diagnosis) -> Iterator[str]:
    if found.fixed:
        yield _html_title("Done by --fix")
        yield from (f'<div style="{_INNER}">{_say(line)}</div>' for line in _done(found))
    if found.problems:
        above, below = _titles(found)
        yield _html_title(above)
        yield from map(_html_item, _items(found))
        whole = _say(below).replace("--fix", '<span style="white-space:nowrap">--fix</span>')
        yield f'<div style="{_NOTE}">{whole}</div>' if below else ""


def _html_title(text: str) -> str:
    return f'<div style="{_TITLE}">{_say(text)}</div>'


def _html_item(item: _Item) -> str:
    parts = [f'<div style="{_HEAD}">{_say(item.head)}</div>']
    parts += [f"<div>{_say(line)}</div>" for line in (item.what, item.why, item.label) if line]
    parts += [f'<pre style="{_CODE}">{_say(item.command)}</pre>'] if item.command else []
    parts += [f"<div>{_say(item.then)}</div>"] if item.then else []
    return f'<div style="{_INNER}">{"".join(parts)}</div>'


def _say(text: str) -> str:
    return escape(plain.printable(text), quote=True)


# -- all checks ----------------------------------------------------------------------------------------------------


def _all(checks: Sequence[Check], title: str | None = None) -> Table:
    rows: list[Row] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        rows += [Row((group,), heading=True), *(_line(check) for check in members)]
    return Table(_title(checks) if title is None else title, None, tuple(rows))


def _line(check: Check) -> Row:
    why = f" {check.why}" if check.state == NOT_AVAILABLE and check.why else ""
    return Row((check.name, _short(f"{check.what}{why}")), check.state)


def _title(checks: Sequence[Check]) -> str:
    counts = Counter(check.state for check in checks)
    some = ((state, counts[state], word) for state, word in _COUNTED.items() if counts[state])
    said = (plural(many, word) if state == WARNING else f"{many} {word}" for state, many, word in some)
    return f"tpu_magics: {len(checks)} checks: {', '.join(said)}"
