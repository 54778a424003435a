"""The graphs of a function as a table: which of them alternate, and their sizes."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight_topic import Topic, by_target
from tpu_magics.panel.sections_words import NOT_AVAILABLE, count, seconds
from tpu_magics.panel.table import Table
from tpu_magics.preflight.report import Preflight, TargetResult


def graphs(found: Preflight) -> Iterator[Topic]:
    if all(len(one.compiled) < 2 for one in found.results):
        return
    columns, rows = by_target(found, ("graph", "sync at", "result", "HBM", "FLOPs", "least time"), _each_graph)
    lead = max(found.results, key=lambda one: len(one.traced.graphs))
    yield Topic("Graphs", _order(lead), Table("", columns, rows))


def _order(result: TargetResult) -> str:
    """ "2 graphs: later steps run that of sync 2"."""
    traced, places = result.traced, _repeated(result)
    many = count(len(traced.graphs), "graph")
    if not places:
        return f"{many} in {count(traced.syncs, 'sync')}"
    syncs = [str(traced.graphs[place].nth + 1) for place in places]
    if len(syncs) == 1:
        return f"{many}: later steps run that of sync {syncs[0]}"
    those = f"those of syncs {', '.join(syncs[:-1])} and {syncs[-1]}"
    if not result.turn:
        return f"{many}: later steps run {those}"
    return f"{many}: {those} alternate, over {len(result.turn)} syncs"


def _repeated(result: TargetResult) -> list[int]:
    """The places of the graphs that later steps run, as far as that is known."""
    steady = [place for place, one in enumerate(result.traced.graphs) if one.steady]
    return sorted(set(result.turn)) or (steady if result.traced.settled else [])


def _each_graph(result: TargetResult) -> Iterator[tuple[str, ...]]:
    for place, (graph, one) in enumerate(zip(result.traced.graphs, result.compiled, strict=True)):
        name = f"sync {graph.nth + 1}{_later(result, place)}"
        memory = words.used(one.memory) if one.memory else NOT_AVAILABLE
        known = result.roofline_of(one)
        total = NOT_AVAILABLE if known.flops is None else words.flops(known.flops)
        least = NOT_AVAILABLE if known.seconds is None else words.at_least(known, seconds(known.seconds))
        yield name, words.place_text(graph.site), words.STATES[one.status][0], memory, total, least


def _later(result: TargetResult, place: int) -> str:
    """How often the graph comes in a full turn of later steps."""
    if place not in _repeated(result):
        return ""
    several = len(result.turn) > 1
    return f"\n{result.turn.count(place)} of {len(result.turn)} later syncs" if several else "\nlater steps"
