"""Ranks that do not compile the same graphs are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch_xla

from tests.launch.launching import run
from tpu_magics.launch.supervisor import GraphSequences
from tpu_magics.runs.events import Compile, Divergence, only

pytest.importorskip("torch_xla")

pytestmark = pytest.mark.usefixtures("fresh_session")


def compiled(rank: int, graph: str) -> Compile:
    return Compile(1.0, rank, graph=graph)


def test_the_first_difference_is_told_once() -> None:
    sequences = GraphSequences()
    told = [sequences.add(compiled(rank, graph)) for rank, graph in ((0, "a"), (1, "a"), (2, "a"), (0, "b"), (2, "c"))]
    assert told[:4] == [None] * 4
    found = told[4]
    assert found is not None and (found.ranks, found.nth) == ((2,), 1) and found.graphs == {"0": "b", "2": "c"}
    assert "Rank 2 compiles another graph than rank 0 (compile 2)" in found.text
    assert sequences.add(compiled(1, "d")) is None


def test_a_rank_that_compiles_less_is_named_when_all_have_ended() -> None:
    sequences = GraphSequences()
    for rank, graph in ((0, "a"), (1, "a"), (0, "b")):
        assert sequences.add(compiled(rank, graph)) is None
    found = sequences.ended([0, 1])
    assert found is not None and found.ranks == (1,) and found.graphs == {"0": "b", "1": ""}


def test_graphs_that_torch_xla_makes_for_each_rank_are_not_compared() -> None:
    sequences = GraphSequences()
    for rank, graph in ((0, "a"), (1, "b")):
        assert sequences.add(replace(compiled(rank, graph), by_rank=True)) is None


def test_graphs_without_a_name_are_not_compared() -> None:
    sequences = GraphSequences()
    assert [sequences.add(compiled(rank, graph)) for rank, graph in ((0, "a"), (1, ""))] == [None, None]


def trains(length: int, own: bool) -> None:
    rank = torch_xla.runtime.global_ordinal()
    x = torch.ones(8, length + (rank if own else 0), device=torch_xla.device())
    for _ in range(2):
        x = x * 2 + 1
        torch_xla.sync()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.process
def test_ranks_with_shapes_of_their_own(own: bool) -> None:
    """Workers on XLA:CPU do not wait for each other, so the run comes to its end and tells."""
    result = run(trains, 4, own, workers=3)
    found = only(result.run.events("divergence"), Divergence)
    assert len(found) == own
    assert not own or found[0].ranks in ((1, 2), (1,), (2,))
