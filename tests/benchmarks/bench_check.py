"""How fast the rules are, over much code and over one notebook: on one core, interleaved with Python's own parser on
the same text.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "Checking code"
LINES = 100_000
TARGET_SECONDS, TARGET_MILLISECONDS = 10.0, 100.0
CELLS = 50
KINDS = ("models of transformers (torch in every line)", "Python's standard library (nothing of ours)")

CELL = """\
# cell {number}
class Net{number}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 64)
        self.second = nn.Linear(64, 2)

    def forward(self, x, mask=None):
        hidden = F.relu(self.first(x))
        if mask is not None:
            hidden = hidden * mask
        return self.second(hidden)


def train_{number}(model, loader, epochs=3):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        total = torch.zeros((), device=accelerator.device)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach()
            if step % 100 == 0:
                print(epoch, step, loss.item())
        print(epoch, total.item())
"""
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\nfrom accelerate import Accelerator\n"


def files(kind: str) -> Iterator[Path]:
    """Files of one kind, in a fixed order."""
    if kind == KINDS[0]:
        found = importlib.util.find_spec("transformers")
        assert found is not None and found.origin is not None
        yield from sorted(Path(found.origin).parent.glob("models/*/modeling_*.py"))
    else:
        yield from sorted(Path(os.__file__).parent.glob("*.py"))
        yield from sorted(Path(os.__file__).parent.glob("[a-z]*/*.py"))


def some(kind: str, lines: int) -> list[Path]:
    """The first files that hold so many lines."""
    chosen, count = [], 0
    for path in files(kind):
        if count >= lines:
            break
        count += path.read_bytes().count(b"\n")
        chosen.append(path)
    return chosen


def look(kind: str, lines: int, rounds: int) -> dict[str, Any]:
    """In a fresh process, on one core: seconds of a check and of a parse, in turn."""
    from tpu_magics.check import check_cells
    from tpu_magics.check.cells import read_file
    from tpu_magics.check.rules import RULES

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    paths = some(kind, lines)
    count = sum(path.read_bytes().count(b"\n") for path in paths)
    checks, parses, found = [], [], list[int]()
    for _ in range(rounds):
        found.clear()
        checks.append(timing.seconds(lambda: found.extend(len(check_cells(read_file(path), RULES)) for path in paths)))
        parses.append(timing.seconds(lambda: [_parsed(path) for path in paths]))
    return {"lines": count, "files": len(paths), "check": checks, "parse": parses, "findings": sum(found)}


def _parsed(path: Path) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return None


def notebook(cells: int) -> str:
    """A notebook of training code, as JSON."""
    texts = [HEAD, *(CELL.format(number=number) for number in range(1, cells))]
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": one} for one in texts
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made})


def look_at_notebook(cells: int, rounds: int) -> dict[str, Any]:
    """In a fresh process, on one core: milliseconds for a notebook, the first time (with our imports) and later."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with fresh.scratch_folder() as folder:
        path = folder / "notebook.ipynb"
        path.write_text(notebook(cells), encoding="utf-8")
        took = [1000 * timing.seconds(lambda: _checked(path)) for _ in range(rounds + 1)]
    return {"first": took[0], "later": took[1:]}


def _checked(path: Path) -> int:
    from tpu_magics.check import check_cells
    from tpu_magics.check.cells import read_file

    return len(check_cells(read_file(path)))


def measure(lines: int = LINES, cells: int = CELLS, rounds: int = 5) -> list[dict[str, Any]]:
    """One row for each kind of code, and one for a notebook."""
    rows = [_row(kind, fresh.call(__name__, "look", kind, lines, rounds)) for kind in KINDS]
    seen = fresh.call(__name__, "look_at_notebook", cells, rounds)
    rows.append(
        {
            "code": f"a notebook of {cells} cells with training loops",
            "lines": notebook(cells).count("\\n"),
            "check, ms (median)": median(seen["later"]),
            "the first time in a process, ms": seen["first"],
        }
    )
    return rows


def _row(kind: str, seen: dict[str, Any]) -> dict[str, Any]:
    check, parse = median(seen["check"]), median(seen["parse"])
    return {
        "code": kind,
        "lines": seen["lines"],
        "files": seen["files"],
        "check, s (median)": check,
        "check, s (slowest)": max(seen["check"]),
        "s per 100,000 lines": check / seen["lines"] * 1e5,
        "times ast.parse": check / parse,
        "findings": seen["findings"],
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    code = max(row["s per 100,000 lines"] for row in rows if "s per 100,000 lines" in row)
    took = rows[-1]["check, ms (median)"]
    return [
        f"Target: 100,000 lines in less than {TARGET_SECONDS:.0f} s on one core: "
        f"{report.met(code < TARGET_SECONDS)} ({code:.1f} s).",
        f"Target: a notebook of {CELLS} cells in less than {TARGET_MILLISECONDS:.0f} ms: "
        f"{report.met(took < TARGET_MILLISECONDS)} ({took:.0f} ms).",
        f"Python {sys.version_info.major}.{sys.version_info.minor}; reading the files is part of both.",
    ]
