"""The page of a run: what every front end shows, in this order, from one reading of the run.

`page_of_run.py` makes it; `html.py`, `text.py`, `live.py` and the JupyterLab extension render it and add no words.
Sizes are limited there: no renderer has to cut. The extension's types are generated from these classes, and a page is
also what a saved notebook holds under `MIME_TYPE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpu_magics.panel.table import SYMBOLS
from tpu_magics.runs.events import Site

Tone = Literal["", "live", "ok", "info", "warning", "broken"]
"""One colour and meaning everywhere. "": neutral; "live": the run goes on; "ok": it is as wanted; "info": advice;
"warning": it costs time or precision; "broken": it failed. A word always says the same as the colour."""

Kind = Literal["recompile", "rule", "read", "host", "precision", "memory", "rank", "message"]
"""What a problem is about: a recompile and its cause, a rule, a read that splits a step, an operation on the host,
..."""

Axis = Literal["number", "seconds", "bytes", "rate"]
"""What a chart's values are: how its axis and its tooltips are written. "rate": steps per second."""


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps; `text`: e.g. "640 of 1,000 steps · about 12 s left"."""

    done: int
    total: int
    text: str


@dataclass(frozen=True)
class Figure:
    """A number at the top. `value`: "n/a" where it is not available, and `hint` says why; `note`: in small letters
    below it, e.g. "2 expected"."""

    label: str
    value: str
    note: str = ""
    hint: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Chart:
    """A curve. `points`: [x, value, lowest, highest] each, lowest and highest over the x since the point before;
    numbers that are not finite are the texts "nan", "inf" and "-inf". `x`: "step", or "" for samples over time. `key`:
    stays the same during the run. `marked`: the compiles belong on it (`Page.compiled_at`). `warning`: e.g. "nan at
    step 12". `saved`: steps at which a checkpoint was saved."""

    key: str
    title: str
    caption: str
    points: tuple[tuple[int, float, float, float], ...]
    axis: Axis = "number"
    x: str = "step"
    marked: bool = False
    warning: str = ""
    saved: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fact:
    """A line of a table of facts: its label, lines of text, a line of code. `mark`: the word of its tone. Text between
    backticks is code."""

    label: str
    lines: tuple[str, ...]
    tone: Tone = ""
    mark: str = ""
    code: str = ""

    @property
    def marked(self) -> str:
        """E.g. "! differs"; "" where it has no tone."""
        return f"{SYMBOLS[self.tone]} {self.mark}".strip() if self.tone else ""


@dataclass(frozen=True)
class Problem:
    """Something to change, or to know (tone "info"). `key`: the same as long as the problem is; `title`: e.g.
    "Recompiles: the input's shape changes"; `count`: e.g. "3 times, 4.1 s"; `times`: the same as a number, 0 where it
    is not counted; `badge`: the few words at its line, e.g. "recompiled 3x"; `site`: its line, None where it has none;
    `text`: what happens and why; `fix`: what to do; `differences`: lines to show as code."""

    key: str
    kind: Kind
    tone: Tone
    title: str
    text: str
    fix: str = ""
    count: str = ""
    times: int = 0
    badge: str = ""
    site: Site | None = None
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class FailureText:
    """Why the run ended: what happened, why, what to do, and lines of code or output as they stand. `tone`: "" for a
    run that its user stopped."""

    tone: Tone
    what: str
    why: str
    todo: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class SectionRow:
    """A row of a table. `site`: what its second cell names, to be shown in the notebook."""

    cells: tuple[str, ...]
    tone: Tone = ""
    site: Site | None = None


@dataclass(frozen=True)
class Item:
    """A row of a list that unfolds to facts. `key`: the same as long as the run exists; `site`: as in SectionRow."""

    key: str
    cells: tuple[str, ...]
    facts: tuple[Fact, ...]
    tone: Tone = ""
    site: Site | None = None


@dataclass(frozen=True)
class Section:
    """A part below the problems, folded: `summary` is one line that says the most of it. Shown in this order: facts,
    charts, table, items, problems, notes. `columns`: the headings of `rows` or of `items`; `problems`: notes and
    advice, which need no action."""

    key: str
    title: str
    summary: str
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[SectionRow, ...] = ()
    items: tuple[Item, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """`v`: RECORD_VERSION. `id`: of the run; `live`: it goes on; `state`: e.g. "training", `symbol`: before it;
    `where`: device, ranks, hosts; `detail`: why it is in this state; `elapsed`: e.g. "1 min 05 s". `charts`: the loss
    first, then other logged values; `compiled_at`: the steps after which something was compiled, but for the first
    compile."""

    v: int
    id: str
    name: str
    live: bool
    background: bool
    state: str
    symbol: str
    tone: Tone
    where: str
    detail: str
    elapsed: str
    progress: Progress | None
    failure: FailureText | None
    charts: tuple[Chart, ...]
    compiled_at: tuple[int, ...]
    figures: tuple[Figure, ...]
    problems: tuple[Problem, ...]
    sections: tuple[Section, ...]
    footer: str
