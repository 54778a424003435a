"""Runs a notebook with nbclient, prints a line for each cell and its text, and saves the executed notebook.

Usage: python scripts/run_notebook.py NOTEBOOK OUTPUT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


class Narrator:
    """Prints each code cell's first statement before it runs, and its text and seconds after."""

    def __init__(self, cells: list[Any]) -> None:
        code_cells = (index for index, cell in enumerate(cells) if cell.cell_type == "code")
        self.numbers = {index: number for number, index in enumerate(code_cells, start=1)}
        self.started = 0.0

    def before(self, cell: Any, cell_index: int) -> None:
        self.started = time.monotonic()
        if cell_index in self.numbers:
            lines = [line for line in cell.source.splitlines() if line.strip() and not line.startswith("#")]
            print(f"  cell {self.numbers[cell_index]} of {len(self.numbers)}: {''.join(lines[:1])}", flush=True)

    def after(self, cell: Any, **_: Any) -> None:
        for line in text_of(cell).splitlines():
            print(f"      {line}")
        print(f"      [{time.monotonic() - self.started:.1f} s]", flush=True)


def text_of(cell: Any) -> str:
    """What the cell showed, as text."""
    parts = []
    for output in cell.get("outputs", ()):
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        parts.append(text if text.endswith("\n") or not text else text + "\n")
    return "".join(parts)


def main(source: Path, target: Path) -> int:
    """Run `source` in its own folder; `target` is written even where a cell fails."""
    notebook = nbformat.read(source, as_version=4)
    narrator = Narrator(notebook.cells)
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # not its warnings about the machine's network
        resources={"metadata": {"path": str(source.parent)}},
        store_widget_state=False,  # a panel leaves html behind, and its widgets are closed
        on_cell_execute=narrator.before,
        on_cell_executed=narrator.after,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(f"\nA cell of {source} failed:\n{error}", file=sys.stderr)
        return 1
    finally:
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
