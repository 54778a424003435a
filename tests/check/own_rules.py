"""Rules for tests of the command, which then do not depend on the real rules."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.rule import Rule

DOC = """{title}

What it does
    Reports calls of `{word}`.

    A second paragraph.
Why this is bad
    It is not what was asked for.
Example
    {word}(1)
Use instead
    {better}(1)
Limitations
    Calls through another name.
"""


def rule(code: str, name: str, group: str, word: str, better: str = "", advice: bool = False) -> Rule:
    """A rule that reports calls of `word`, and writes `better` for it."""

    def check(self: Rule, node: ast.Call, ctx: Any) -> Iterator[Finding]:
        if isinstance(node.func, ast.Name) and node.func.id == word:
            edits = [ctx.replace(node.func, better)] if better else []
            yield ctx.finding(node, f"Here is {ctx.source(node)}.", "Write something else.", edits=edits, advice=advice)

    found: Rule = type(
        name,
        (Rule,),
        {
            "__doc__": DOC.format(title=f"A call of {word}.", word=word, better=better or "other"),
            "code": code,
            "name": name,
            "group": group,
            "why": f"Nobody wants {word}.",
            "nodes": (ast.Call,),
            "check": check,
        },
    )()
    return found


RED = rule("TPU901", "call-of-red", "values", "red", "green")
BLUE = rule("TPU902", "call-of-blue", "shapes", "blue")
GREY = rule("TPU911", "call-of-grey", "launch", "grey", "gray", advice=True)
RULES = (RED, BLUE, GREY)


def notebook(*sources: str | Sequence[str], **metadata: Any) -> dict[str, Any]:
    """A notebook of code cells, with a markdown cell on top and outputs that must stay."""
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": ["# red(1)"]}]
    for count, source in enumerate(sources, start=1):
        kept = source if isinstance(source, str) else list(source)
        output = {"name": "stdout", "output_type": "stream", "text": ["red(1)\n"]}
        cells.append(
            {"cell_type": "code", "execution_count": count, "metadata": {}, "outputs": [output], "source": kept}
        )
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write_notebook(path: Path, *sources: str | Sequence[str], dump: Callable[..., str] = json.dumps) -> Path:
    path.write_text(dump(notebook(*sources), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def finding(line: int = 1, column: int = 1, **changes: Any) -> Finding:
    """A finding at a place."""
    fields: dict[str, Any] = {
        "code": "TPU901", "group": "values", "path": "a.py", "cell": None, "end_line": line, "end_column": column + 1,
        "message": "This is red.", "why": "Nobody wants red.", "fix": "Write green.", "source": "x = red(1)",
    }  # fmt: skip
    return Finding(**{**fields, "line": line, "column": column, **changes})


def edit(line: int, start: int, end: int, text: str) -> Edit:
    return Edit((line, start), (line, end), text)
