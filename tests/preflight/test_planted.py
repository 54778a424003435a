"""Advice for planted faults: each is found, and proved by a compile. And for tuned programs: none that gains little."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch_xla")

from tests.preflight.planted import (
    FAULTS,
    TUNED,
    WITHOUT_GAIN,
    copies_of_moments,
    f32_attention,
    f32_matmuls,
    f32_similarity,
    scores_in_memory,
    small_heads,
    small_heads_of_an_unaligned_size,
    tiny_batch,
    unaligned_heads,
)
from tpu_magics.launch.options import Options
from tpu_magics.preflight.advice import WORTH, Proposal, proposals, subject_of, try_out
from tpu_magics.preflight.pipeline import Callbacks, PreflightPipeline, TrainingCall
from tpu_magics.preflight.report import TargetResult, TriedChange
from tpu_magics.preflight.targets import parse

pytestmark = [pytest.mark.process, pytest.mark.timeout(600), pytest.mark.usefixtures("own_cache")]
SHORT = {f32_matmuls, copies_of_moments, scores_in_memory, tiny_batch}
MARKED = {
    f32_attention,
    f32_similarity,
    scores_in_memory,
    small_heads,
    small_heads_of_an_unaligned_size,
    unaligned_heads,
}
Function = Callable[..., None]


def samples(found: dict[Function, Any]) -> list[Any]:
    """Each is compiled two times or more."""
    return [
        pytest.param(function, change, id=function.__name__, marks=() if function in SHORT else pytest.mark.long)
        for function, change in found.items()
    ]


def pipeline(call: TrainingCall, options: Options) -> PreflightPipeline:
    return PreflightPipeline(call.name, call.lowering(options), False, None, None, (), Callbacks(), call.framework)


def proposed(function: Function) -> tuple[TrainingCall, TargetResult, list[Proposal]]:
    call = TrainingCall(function, (), {})
    result = pipeline(call, Options()).result(parse("v5e-1"), later=True)
    return call, result, proposals(subject_of(result, call, {}))


def tried(call: TrainingCall, result: TargetResult, found: list[Proposal]) -> list[TriedChange]:
    return try_out(found, call, result, Options(), {}, pipeline)


def begins(one: Proposal, *changes: str) -> bool:
    return any(text.startswith(changes) for text in (one.variant.label, *one.variant.changes))


def tried_for(function: Function, change: str) -> TriedChange:
    call, result, every = proposed(function)
    found = [one for one in every if begins(one, change)]
    assert found, [one.what for one in every]
    [one] = tried(call, result, found[:1])
    print(f"{function.__name__} | {one.what} | time {one.time_gain} | memory {one.memory_gain}")
    assert not one.error
    return one


@pytest.mark.parametrize(("function", "change"), samples(FAULTS))
def test_a_planted_fault_is_found_and_its_change_proved(function: Function, change: str) -> None:
    one = tried_for(function, change)
    assert one.worth
    if function in MARKED:
        assert one.place is not None
        assert linecache.getline(one.place.path, one.place.line).rstrip().endswith("# planted")


@pytest.mark.parametrize(("function", "change"), samples(WITHOUT_GAIN))
def test_a_change_that_gains_nothing_is_tried_and_not_told(function: Function, change: str) -> None:
    assert not tried_for(function, change).worth


@pytest.mark.parametrize(("function", "undoing"), samples(TUNED))
def test_a_tuned_program_gets_no_advice_that_gains_little(function: Function, undoing: tuple[str, ...]) -> None:
    call, result, every = proposed(function)
    assert result.fits
    assert not [one.what for one in every if begins(one, *undoing)]
    for one in tried(call, result, every):
        print(f"{function.__name__} | {one.what} | {one.worth} | time {one.time_gain} | memory {one.memory_gain}")
        gains = one.time_gain, one.memory_gain
        assert not one.worth or max(gain for gain in gains if gain is not None) >= WORTH
