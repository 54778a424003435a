"""When a traced function has shown enough of itself: which syncs are steps, and which graphs are the steady ones. The
syncs are made here; test_trace.py has functions that make them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tpu_magics.backends.torch.steady_state import FORWARD, WAITS, SteadyStateDetector, Sync

ONE, OTHER = frozenset({1}), frozenset({2})


def trained(graph: str, by: frozenset[int] = ONE, asleep: int = 0) -> Sync:
    return Sync(graph, backward=True, stepped=by, optimizer=True, asleep=asleep)


def gathered(graph: str) -> Sync:
    return Sync(graph, backward=True, optimizer=True)


def evaluated(graph: str, optimizer: bool = True) -> Sync:
    return Sync(graph, optimizer=optimizer)


def run(syncs: Iterable[Sync], steps: int = 5) -> tuple[SteadyStateDetector, int]:
    """What is known when it is enough, or the function ends; and after how many syncs."""
    settling = SteadyStateDetector(steps)
    for number, sync in enumerate(syncs, 1):
        if settling.add(sync):
            return settling, number
    settling.at_end()
    return settling, len(settling.syncs)


EPOCH = [trained("step"), *[evaluated("eval")] * 3]
TURNS = [[trained(f"one{when}"), trained(f"two{when}", OTHER)] for when in (", first", "")]


@pytest.mark.parametrize(
    ("syncs", "known"),  # settled, after how many syncs, the steady graphs
    [
        pytest.param([trained("first"), *[trained("later")] * 10], (True, 3, ("later",)), id="equal"),
        pytest.param([trained("ab"[number % 2]) for number in range(10)], (False, 5, ("a",)), id="alternating"),
        pytest.param([evaluated("eval")] * 20 + EPOCH * 3, (True, 25, ("step",)), id="evaluations between"),
        pytest.param([Sync("w -= w.grad", backward=True)] * 5, (True, 2, ("w -= w.grad",)), id="no optimizer"),
        pytest.param([*TURNS[0], *TURNS[1] * 4], (True, 6, ("one", "two")), id="two optimizers in turns"),
        pytest.param([evaluated("eval", optimizer=False)] * 20, (True, FORWARD, ("eval",)), id="forward, equal"),
        pytest.param(
            [evaluated(str(number), optimizer=False) for number in range(20)],
            (False, 5, ("4",)),
            id="forward, different",
        ),
    ],
)
def test_how_many_syncs_are_enough(syncs: list[Sync], known: tuple[bool, int, tuple[str, ...]]) -> None:
    found, count = run(syncs)
    assert (found.settled, count, found.steady, found.notes) == (*known, [])


def test_steps_that_differ_end_at_the_limit() -> None:
    found, count = run([trained(str(number)) for number in range(10)], steps=4)
    assert (found.settled, count, found.steady, found.notes) == (False, 4, ("3",), [])


@pytest.mark.parametrize("micro", [2, 4, 8])
def test_gathered_gradients_end_no_step(micro: int) -> None:
    def cycle(number: int) -> list[Sync]:
        last = trained("making state" if number == 0 else "step")
        return [gathered("first of all" if number == 0 else "new"), *[gathered("more")] * (micro - 2), last]

    found, count = run(sync for number in range(5) for sync in cycle(number))
    assert (found.settled, count, found.steady) == (True, 3 * micro, ("step",))


def test_an_optimizer_that_has_not_stepped_is_waited_for() -> None:
    turn = [*[trained("critic", asleep=1)] * 5, trained("maker", OTHER)]
    found, count = run(turn + [*[trained("critic")] * 5, trained("maker", OTHER)] * 3)
    assert (found.settled, count, found.steady) == (True, 12, ("critic", "maker"))
    found, count = run([trained("critic", asleep=1)] * 20)
    assert (found.settled, count) == (True, 10)
    assert found.notes == ["Optimizers that made no step during the trace: 1."]


# -- what never trains ------------------------------------------------------------------------------------------------


def test_an_evaluation_without_end_is_left_before_a_training() -> None:
    found, count = run([evaluated("eval")] * 200)
    assert (found.settled, count, found.steady) == (False, WAITS, ("eval",))
    assert found.notes == [
        "The trace ended before the function: the first 64 syncs only evaluated. Graphs that come later are unknown."
    ]


def test_an_evaluation_without_end_after_a_step() -> None:
    found, count = run([trained("step"), *[evaluated("eval")] * 200])
    assert (found.settled, count, found.steady) == (False, WAITS + 1, ("step",))
    assert "the last 64 syncs only evaluated" in found.notes[0]


# -- too few ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("syncs", "note"),
    [
        ([trained("first")], "The function made only one step. The graph of later steps may be unknown."),
        (
            [trained("first"), trained("second")],
            "The function made only 2 steps, and no two consecutive graphs were equal",
        ),
        ([gathered("more")] * 3, "The function ended before its optimizer made a step, so no training step was traced"),
    ],
)
def test_too_few_steps_are_told(syncs: list[Sync], note: str) -> None:
    found, _ = run(syncs)
    assert not found.settled and found.steady == (syncs[-1].graph,)
    assert len(found.notes) == 1 and found.notes[0].startswith(note)


def test_nothing_is_nothing() -> None:
    found, _ = run([])
    assert (found.settled, found.steady, found.notes) == (False, (), [])
