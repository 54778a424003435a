"""What people write and foreign records hold, in every place of a run: it is to stay text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.panel import recorded
from tests.panel.recorded import CREATED, recompile, started
from tpu_magics.panel.run_view import RunView
from tpu_magics.runs.events import (
    Cache,
    Divergence,
    End,
    Event,
    Fallback,
    Frame,
    Input,
    Precision,
    Read,
    RuleFinding,
    Saved,
    Site,
    Value,
    Warned,
)

EVIL = [
    "<script>alert(1)</script>",
    "</style><script>x</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</td></tr></table></details><iframe>",
    "&lt;b&gt; &amp; <!-- ",
    "\x1b[31m\u202e\ud800<b>",
]


def harmless(evil: str) -> str:
    """As long, with blanks and slashes where the other has them: long words and paths are laid out otherwise."""
    return re.sub(r"[^/\s]", "x", evil)


def _evil_site(word: str) -> Site:
    return Site(5, word, 3, word, word)


PLACES: dict[str, Callable[[str], Event]] = {
    "value name": lambda word: Value(CREATED + 2, 0, word, 1.0, 1),
    "value text": lambda word: Value(CREATED + 2, 0, "stage", word, 1),
    "warning": lambda word: Warned(CREATED + 2, 0, "x", word),
    "checkpoint": lambda word: Saved(CREATED + 2, 0, step=1, synced=1, name=word),
    "divergence": lambda word: Divergence(CREATED + 2, 0, (1,), 1, {}, word),
    "compile": lambda word: recompile(
        CREATED + 2,
        1,
        site=_evil_site(word),
        graph=word,
        cause=word,
        text=word,
        fix=word,
        difference=(word,),
        inputs=(Input(word, (1,), word),),
        memory={word: 5},
        trigger=word,
    ),
    "read": lambda word: Read(CREATED + 2, 0, _evil_site(word), 1, 0.1, word),
    "transfer": lambda word: recorded.read_early(CREATED + 2, site=_evil_site(word), code=word, text=word, fix=word),
    "fallback": lambda word: Fallback(CREATED + 2, 0, word, 1),
    "cache": lambda word: Cache(CREATED + 2, 0, path=word, text=word),
    "precision": lambda word: Precision(
        CREATED + 2, 0, word, word, 1, 1.0, {word: 1}, word, agrees=False, text=word, notes=(word,)
    ),
    "rule": lambda word: RuleFinding(
        CREATED + 2, 0, word, word, _evil_site(word), 1, word, word, word, advice=False, name=word
    ),
    "exception": lambda word: End(
        CREATED + 2, 0, "failed", error_type=word, error_text=word, frames=(Frame(word, 1, word, word),)
    ),
}


def told_in_run_json(root: Path, word: str, name: str) -> RunView:
    """A run whose run.json holds the word wherever it can."""
    failure = {"what": word, "why": word, "todo": word, "details": [word]}
    run = started(root / name, name=name, warnings=[word], failure=failure, models=[word], status="done")
    run.update(name=word, plan={"precision": word, "device": word})
    return run.view()
