"""Writes the traced graphs for the notebook: one JSON file, and one file per graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpu_magics.backends.lowered import TRACED, HostRead, LoweredGraph, UnsupportedOp

READS = "reads.txt"


def write(
    folder: Path,
    graphs: Sequence[tuple[LoweredGraph, bool]],
    reads: Sequence[HostRead],
    refused: Sequence[UnsupportedOp],
    **more: Any,
) -> None:
    """Write all of it; `graphs`: with whether each is steady; `more`: other fields of TraceResult."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    records = []
    for number, (graph, steady) in enumerate(graphs):
        file = f"graph-{number}.pb"
        (folder / file).write_bytes(graph.module)
        fields = {name: value for name, value in vars(graph).items() if name not in ("module", "places", "site")}
        site = None if graph.site is None else asdict(graph.site)
        # Thousands of instructions come from a few lines, so each line is written once.
        lines = {place: number for number, place in enumerate(dict.fromkeys(graph.places.values()))}
        places = {"lines": [asdict(one) for one in lines], "of": {n: lines[one] for n, one in graph.places.items()}}
        records.append({**fields, "file": file, "steady": steady, "site": site, "places": places})
    found = {"graphs": records, "reads": [asdict(one) for one in reads], "refused": [asdict(one) for one in refused]}
    temporary = folder / f"{TRACED}.tmp"
    temporary.write_text(json.dumps({**found, **more}))
    temporary.replace(folder / TRACED)


def write_reads(folder: Path, reads: Sequence[HostRead]) -> None:
    """The reads so far, one per line: if the function fails, they may be the cause."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / READS).write_text("\n".join(dict.fromkeys(map(_line, reads))))


def _line(read: HostRead) -> str:
    if read.place is None:
        return read.what
    inside = f" (inside {read.inside})" if read.inside is not None else ""
    return f"{read.place}: {read.place.code}{inside}"
