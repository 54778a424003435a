"""`python -m tests.benchmarks [--write] [NAME ...]`: runs benchmarks and shows their tables."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import fresh, report
from tpu_magics.panel.table import Table, to_text

DOCS = fresh.ROOT / "docs" / "benchmarks.md"
TIMEOUT = 3600.0  # seconds for one benchmark
COMMAND = "python -m tests.benchmarks"


def names() -> list[str]:
    """All benchmarks, without the prefix of their files."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def run(name: str) -> Table:
    """Measure in a fresh process, and judge."""
    module = f"tests.benchmarks.bench_{name}"
    rows: list[dict[str, Any]] = fresh.call(module, "measure", timeout=TIMEOUT)
    bench = importlib.import_module(module)
    notes = bench.notes(rows) if hasattr(bench, "notes") else []
    return report.to_table(bench.TITLE, rows, notes)


def write(document: Path, name: str, table: Table, described: str) -> None:
    """Put a table into the document, with how it was made above it."""
    body = f"{described}\n\n{report.to_markdown(table)}"
    before = document.read_text(encoding="utf-8")
    document.write_text(report.replace_section(before, name, table.title, body), encoding="utf-8")


def document_of(name: str, default: Path) -> Path:
    """The file beside `default` that a benchmark names as its own, else that one."""
    bench = importlib.import_module(f"tests.benchmarks.bench_{name}")
    return default.with_name(getattr(bench, "DOCUMENT", default.name))


def main(words: Sequence[str], document: Path = DOCS) -> int:
    """Run what was asked for. 1 where a benchmark could not be run; a missed target is told, not punished."""
    found = _read(words)
    failed = 0
    for name in found.names:
        described = report.machine()
        print(f"==> {name}", flush=True)
        start = time.monotonic()
        try:
            table = run(name)
        except RuntimeError as error:
            print(f"{name} could not be measured: {error}\n", flush=True)
            failed += 1
            continue
        described += f"\nCommand: `{COMMAND} {name}`; it took {time.monotonic() - start:.0f} s."
        print(f"{to_text(table, width=120)}\n{described}\n", flush=True)
        if found.write:
            write(document_of(name, document), name, table, described)
    return 1 if failed else 0


def _read(words: Sequence[str]) -> argparse.Namespace:
    known = names()
    parser = argparse.ArgumentParser(prog=COMMAND, description="Make the figures of the docs again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    found = parser.parse_args(words)
    found.names = [name.removeprefix("bench_") for name in found.names] or known
    if unknown := set(found.names) - set(known):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
