"""How long the advice about padding takes, on lengths as texts have them (log-normal), and the exact dynamic
programming against an algorithm that tries each pair of lengths.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.benchmarks import fresh, report, timing
from tpu_magics.padding.report import PadOptions, advise
from tpu_magics.padding.strategies import best_buckets
from tpu_magics.panel.padding import to_html, to_text

TITLE = "Advice about padding"
SAMPLES = 1_000_000
BUCKETS = 8
DISTINCT = (1_000, 10_000, 100_000)
QUADRATIC = 1_000  # distinct lengths that the slow programme gets
TARGET = 2.0  # seconds
ADVICE = "{:,} lengths to table and drawings"
FAST, SLOW = "best {} buckets of {:,} different lengths", "the same of {:,}, trying each pair of lengths"


def lengths(samples: int) -> list[int]:
    """About 2,000 different ones, half of them below 400 tokens."""
    chance = random.Random(0)
    return [min(4_000, max(8, int(chance.lognormvariate(6, 0.8)))) for _ in range(samples)]


def try_each_pair(counts: Mapping[int, int], most: int) -> int:
    """The token slots of the best buckets, in time quadratic in the lengths."""
    found = sorted(counts)
    below = [0]
    for length in found:
        below.append(below[-1] + counts[length])
    costs: list[float] = [0.0, *([float("inf")] * len(found))]
    for _ in range(most):
        costs = [0.0] + [
            min(costs[start] + bound * (below[end] - below[start]) for start in range(end))
            for end, bound in enumerate(found, 1)
        ]
    return int(costs[-1])


def times(samples: int, distinct: list[int], quadratic: int, rounds: int) -> list[dict[str, Any]]:
    """In a fresh process."""
    given = lengths(samples)
    rows = [_row(ADVICE.format(samples), rounds, lambda: _advice(given))]
    for many in distinct:
        counts = {length: 1 + length * 7919 % 97 for length in range(1, many + 1)}
        best = FAST.format(BUCKETS, many)
        rows.append(_row(best, rounds, lambda counts=counts: best_buckets(counts, BUCKETS)))  # type: ignore[misc]
    counts = {length: 1 + length * 7919 % 97 for length in range(1, quadratic + 1)}
    rows.append(_row(SLOW.format(quadratic), 1, lambda: try_each_pair(counts, BUCKETS)))
    assert best_buckets(counts, BUCKETS)[-1].slots == try_each_pair(counts, BUCKETS), "the two do not agree"
    return rows


def _advice(given: list[int]) -> None:
    advice = advise(given, PadOptions(compile_seconds=20, tokens_per_second=50_000))
    assert to_html(advice) and to_text(advice), "there is no advice"


def _row(what: str, rounds: int, call: Callable[[], object]) -> dict[str, Any]:
    return timing.row(what, [timing.seconds(call) for _ in range(rounds)])


def measure(
    rounds: int = 5, samples: int = SAMPLES, distinct: tuple[int, ...] = DISTINCT, quadratic: int = QUADRATIC
) -> list[dict[str, Any]]:
    """A row for the advice, one for each number of different lengths, and one for the quadratic programme."""
    rows: list[dict[str, Any]] = fresh.call(__name__, "times", samples, distinct, quadratic, rounds)
    return rows


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    whole = rows[0]
    return [
        "One core, Python's standard library only. The lengths lie in a list; a shuffled epoch of them is drawn.",
        "Exact: the best buckets are found in time linear in the different lengths, by the lower envelope of lines.",
        f"Target: a million lengths in less than {TARGET:g} s: {report.met(whole['s, slowest'] < TARGET)} "
        f"({whole['s, slowest']:.2f} s).",
    ]
