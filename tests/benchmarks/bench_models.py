"""Small models of many kinds, traced and compiled for a TPU that is not here: what works, and what it costs.

The models are those of tests/preflight/architectures.py. Each is traced in a process of its own; of its graphs, the one
that later steps run is compiled.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import fresh, steady
from tests.preflight.architectures import ARCHITECTURES, HEADS, LENGTH, ROWS, VOCABULARY, WIDTH, train
from tpu_magics.errors import TpuMagicsError

TITLE = "Models by kind"
DOCUMENT = "preflight.md"
TARGET = "v5e-1"
TIMEOUT = 1200.0  # seconds for one model
REASON = 200  # characters of an error
FITS = "yes"


def one(name: str) -> dict[str, Any]:
    """The row of that model; where it cannot be traced, with the reason alone."""
    row: dict[str, Any] = {"model": name, "kind": ARCHITECTURES[name].kind}
    try:
        traced = steady.traced(train, name, target=TARGET)
    except TpuMagicsError as error:
        return {**row, "fits": refused(error.what)}
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9  # the trace is the only child so far
    found = steady.compiled(traced, TARGET)
    memory, least, estimate = found.worst.memory, found.least, found.profile.seconds
    return {
        **row,
        "trace, s": traced.seconds,
        "memory of the trace, GB": peak,
        "compile, s": sum(each.seconds or 0.0 for each in found.compiled),
        "fits": FITS if found.fits else refused(f"{found.status}, {found.worst.error}"),
        "HBM, MB": memory.needed / 1e6 if memory is not None else None,
        "bound, ms": 1000 * least if least is not None else None,
        "estimate, ms": 1000 * estimate if estimate is not None else None,
        "on the host in each step": ", ".join(sorted({each.op.removeprefix("aten::") for each in traced.refused})),
    }


def refused(why: str) -> str:
    return f"no: {why.splitlines()[0][:REASON]}"


def measure(names: Sequence[str] = tuple(ARCHITECTURES)) -> list[dict[str, Any]]:
    """A row for each model; those whose package is not installed are left out."""
    return [
        fresh.call(__name__, "one", name, timeout=TIMEOUT)
        for name in names
        if steady.is_installed(ARCHITECTURES[name].requires)
    ]


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    whole = [row for row in rows if row["fits"] == FITS]
    absent = [f"{one.name} ({one.requires})" for one in ARCHITECTURES.values() if not steady.is_installed(one.requires)]
    found = [
        f"For {TARGET}, AdamW, float32; {ROWS} samples of {LENGTH} tokens (or pictures), width {WIDTH}, {HEADS} heads, "
        f"{VOCABULARY} words, one layer of each kind unless the kind needs more: only the forms are tried here.",
        f"{len(whole)} of {len(rows)} models are traced, compiled, and fit.",
    ]
    if whole:
        slowest = max(whole, key=lambda row: row["trace, s"])
        largest = max(row["memory of the trace, GB"] for row in whole)
        found.append(
            f"The slowest trace is that of {slowest['model']}, {slowest['trace, s']:.0f} s; the most memory that a "
            f"trace takes is {largest:.1f} GB, most of it torch, torch_xla and transformers themselves."
        )
    if absent:
        found.append(f"Not installed, and so not tried: {', '.join(absent)}.")
    return found
