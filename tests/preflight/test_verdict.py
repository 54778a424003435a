"""The verdict: which reasons speak for a TPU, which against it, and what they come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.panel import preflights
from tests.panel.preflights import GIB, MIB, result, traced
from tpu_magics.backends.lowered import HostRead, SourceLine, TraceResult, UnsupportedOp
from tpu_magics.preflight.compile_result import CompileResult, HbmUsage, Multiplications, PaddedDimension, TilePadding
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.roofline import COMPUTE, MEMORY, THRESHOLDS, bf16_share, roofline, waste
from tpu_magics.preflight.verdict import AS_WELL, ELSEWHERE, FIX, SMALL, Reason, TpuVerdict


def verdict(trace: TraceResult | None = None, **facts: Any) -> TpuVerdict:
    return result("v5e-8", trace, **facts).verdict


def reason(found: TpuVerdict, about: str) -> Reason:
    return next(one for one in found.reasons if one.about == about)


# -- the roofline ----------------------------------------------------------------------------------------------------


def program(**facts: Any) -> CompileResult:
    return CompileResult("t", "g", "fits", **facts)


def test_time_is_the_larger_of_both_bounds() -> None:
    found = roofline(program(flops=2e12, hbm_bytes=1e9), peak=100e12, bandwidth=1e12)
    assert found.compute == pytest.approx(0.02) and found.memory == pytest.approx(0.001)
    assert (found.bound, found.seconds) == (COMPUTE, found.compute) and found.steps_per_second == pytest.approx(50)
    assert (found.intensity, found.ridge, found.busy) == (2000, 100, 1.0)


def test_memory_binds_below_the_ridge() -> None:
    found = roofline(program(flops=1e12, hbm_bytes=1e11), peak=100e12, bandwidth=1e12)
    assert found.bound == MEMORY and found.seconds == pytest.approx(0.1) and found.busy == pytest.approx(0.1)
    assert found.intensity is not None and found.ridge is not None and found.intensity < found.ridge


def test_bytes_accessed_is_no_bound() -> None:
    found = roofline(program(flops=1e12, bytes_accessed=1e15, hbm_bytes=1e9), peak=1e14, bandwidth=1e12)
    assert found.bytes == 1e9 and found.bound == COMPUTE


def test_without_the_program_arguments_and_outputs_are_the_floor() -> None:
    memory = HbmUsage(10 * GIB, None, arguments=3 * GIB, outputs=2 * GIB, aliased=2 * GIB, temporaries=7 * GIB)
    found = roofline(program(flops=1e12, bytes_accessed=1e15, memory=memory), peak=1e14, bandwidth=1e12)
    assert (found.bytes, found.counted) == (5 * GIB, "arguments")


def test_what_is_not_known_has_a_reason() -> None:
    found = roofline(program(), peak=1e14, bandwidth=1e12)
    assert (found.seconds, found.bound, found.steps_per_second, found.matmul_share) == (None, "", None, None)
    assert set(found.reasons) == {"flops", "bytes", "compute", "memory", "matmul_share"}
    one = roofline(program(flops=1e12), peak=1e14, bandwidth=1e12)
    assert (
        one.seconds == pytest.approx(0.01) and not one.bound and set(one.reasons) == {"bytes", "memory", "matmul_share"}
    )
    assert "figure" in roofline(program(flops=1e12), peak=None, bandwidth=None).reasons["compute"]


def test_multiplications_in_loops_count_as_often_as_they_run() -> None:
    """The compiler's own count has the body of a loop once."""
    looped = program(flops=1e12, multiplications=Multiplications({"bf16": 1e13}))
    assert roofline(looped, 1e14, 1e12).flops == 1e13


def test_of_a_program_with_loops_the_share_of_multiplications_is_not_known() -> None:
    """They count in each round, and what stands beside them once."""
    for whole in (1e12, 4e12):
        looped = program(flops=whole, multiplications=Multiplications({"bf16": 2e12}), loops=True)
        found = roofline(looped, 1e14, 1e12)
        assert found.matmul_share is None and "once per iteration" in found.reasons["matmul_share"]
    told = verdict(flops=1e12, multiplications=Multiplications({"bf16": 2e12}), loops=True)
    assert (told.suits, told.because) == (None, "The share of matrix multiplications is unknown.")
    assert "once per iteration" in reason(told, "matmul").sentence


def test_what_the_compiler_leaves_out_is_added_to_all_and_to_the_multiplications() -> None:
    """Attention on v5e: 200 of 400 are in a kernel that the compiler made, and 300 are no multiplications."""
    found = roofline(program(flops=500.0, multiplications=Multiplications({"f32": 400.0}, kernels=200.0)), 1e14, 1e12)
    assert found.flops == 700 and found.matmul_share == pytest.approx(4 / 7) and "matmul_share" not in found.reasons


def test_what_a_program_decides_while_it_runs_is_no_bound() -> None:
    assert roofline(program(flops=1e12), 1e14, 1e12).least
    assert not roofline(program(flops=1e12, guessed=True), 1e14, 1e12).least
    assert reason(verdict(), "step").number.startswith("at least ")
    assert reason(verdict(guessed=True), "step").number.startswith("about ")


def test_of_a_program_that_was_not_made_nothing_is_reckoned() -> None:
    """What the compiler dumped on the way is no program: 142.9 TFLOP were seen there for one of 129.2."""
    gone = CompileResult(
        "t", "g", "too-large", memory=HbmUsage(50 * GIB, 16 * GIB), hbm_bytes=5e11, padding=TilePadding(2, 1)
    )
    found = roofline(replace(gone, multiplications=Multiplications({"f32": 1.429e14})), 1e14, 1e12)
    assert (found.flops, found.seconds, found.steps_per_second, found.bound) == (None, None, None, "")
    assert set(found.reasons.values()) == {"no program was compiled"} and waste(gone) is None
    took = replace(gone, flops=1e12, memory=HbmUsage(17 * GIB, 16 * GIB, GIB, GIB, 0, 15 * GIB, 0))
    assert roofline(took, 1e14, 1e12).seconds is not None


def test_shares_of_nothing_are_not_known() -> None:
    assert bf16_share(program()) is None
    assert bf16_share(program(multiplications=Multiplications())) is None
    assert bf16_share(program(multiplications=Multiplications({"bf16": 3.0, "f32": 1.0}))) == 0.75
    assert waste(program()) is None and waste(program(padding=TilePadding(0, 0))) is None
    assert waste(program(padding=TilePadding(128, 100))) == pytest.approx(0.21875)


# -- what it comes to ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "tpu7x-8"])
def test_bert_suits_every_generation(name: str) -> None:
    found = result(name).verdict
    assert found.suits is True and found.text.startswith("Suits a TPU.")
    assert not [one for one in found.reasons if one.good is False]


def test_bert_in_f32_suits_too_and_is_told_of_bf16() -> None:
    found = verdict(multiplications=Multiplications({"f32": 2.1e12}), hbm_bytes=4e10)
    assert found.suits is True
    assert reason(found, "bf16").good is None and "--precision bf16" in reason(found, "bf16").todo


def test_a_tiny_step_is_too_little_work() -> None:
    """Whichever generation it is for: a GPU would wait for its memory as well."""
    found = preflights.tiny().results[0].verdict
    assert (found.suits, found.word, found.reasons[0].decides) == (False, "too little work", SMALL)
    step = reason(found, "step")
    assert step.decides == SMALL and "very little work" in step.text and step.todo


@pytest.mark.parametrize("name", ["v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8"])
def test_a_small_batch_is_called_one_on_every_generation(name: str) -> None:
    """Three layers, 22 MiB of parameters, AdamW, batch 32: compiled for v5e it moves 244 MB for 1.09 GFLOP."""
    memory = HbmUsage(131 * MIB, 16 * GIB, 67 * MIB, 111 * MIB, 67 * MIB, 17 * MIB, 3 * MIB)
    multiplied = Multiplications({"f32": 1.01e9})
    found = result(name, flops=1.09e9, hbm_bytes=2.44e8, multiplications=multiplied, memory=memory).verdict
    assert (found.suits, found.word) == (False, "too little work")
    assert found.because.startswith(
        "The batch is too small for a TPU: 32 rows on a rank. Rows needed to keep the matrix"
    )
    assert not [one for one in found.reasons if one.about == "batch"]


def test_from_where_on_the_matrix_units_bind_is_an_estimate_by_the_parameters() -> None:
    """They are read and written: 100 GB at 819 GB/s, against 2.16e12 FLOPs at 197e12."""
    memory = HbmUsage(8 * GIB, 16 * GIB, arguments=int(5e10), outputs=int(5e10), aliased=int(5e10))
    found = reason(verdict(hbm_bytes=2e11, memory=memory), "busy")
    assert found.number == f"about {float(f'{32 * (1e11 / 819e9) / (2.16e12 / 197e12):.2g}'):,.0f}" == "about 360"
    assert (found.decides, found.todo) == (SMALL, "A larger batch.")
    unknown = reason(verdict(traced(batch=None), hbm_bytes=3e11, memory=memory), "busy")
    assert unknown.decides == SMALL and "few FLOPs for the parameters" in unknown.text


def test_a_tiny_step_is_not_called_so_where_only_one_bound_is_known() -> None:
    found = verdict(flops=1e6, hbm_bytes=None, memory=None, multiplications=Multiplications({"bf16": 9e5}))
    assert reason(found, "step").good is None


def test_little_matmul_is_better_off_elsewhere() -> None:
    found = verdict(multiplications=Multiplications({"bf16": 4e11}))
    assert found.suits is False and found.word == "better on a GPU"
    assert (reason(found, "matmul").number, found.reasons[0].decides) == ("19 %", ELSEWHERE)


def test_idle_matrix_units_alone_send_nobody_to_a_gpu() -> None:
    """The parameters are 1.24 GiB: they take less than the FLOPs, so what is moved is something else."""
    found = verdict(hbm_bytes=1e12)
    assert (reason(found, "busy").decides, found.suits, found.word) == (AS_WELL, False, "a GPU is as good")
    unknown = reason(verdict(hbm_bytes=1e12, memory=HbmUsage(GIB, 16 * GIB)), "busy")
    assert (unknown.good, unknown.decides) == (False, "")
    assert reason(verdict(hbm_bytes=3e10), "busy").good is None
    assert reason(verdict(hbm_bytes=1e10), "busy").good is True


@pytest.mark.parametrize("kind", ["host", "custom"])
def test_an_op_outside_of_the_program_has_to_be_mended(kind: str) -> None:
    op = UnsupportedOp("aten::nonzero", "", kind, preflights.READ)
    found = verdict(traced(refused=(op,)))
    assert found.suits is False and found.word == "needs changes"
    assert "aten::nonzero (In [3]:27)" in found.because
    assert reason(found, "ops").decides == FIX


def test_what_does_not_fit_has_to_be_mended() -> None:
    found = preflights.too_large().results[0].verdict
    assert found.suits is False and "does not fit" in found.because
    assert reason(found, "memory").number == "11.7 times what is available" and "--fit" in reason(found, "memory").todo


def test_a_refused_program_has_to_be_mended_and_no_answer_is_no_verdict() -> None:
    refused, failed = (one.verdict for one in preflights.refused().results)
    assert refused.suits is False and "my_kernel" in reason(refused, "memory").number
    assert failed.suits is None and failed.word == "unknown"


def test_a_changing_graph_has_to_be_mended_once_it_is_known_to_change() -> None:
    each = traced(settled=False, syncs=5, graphs=tuple(preflights.graph(nth) for nth in range(5)))
    assert reason(verdict(each), "graphs").decides == FIX
    for syncs in (1, 2):
        early = reason(verdict(traced(settled=False, syncs=syncs)), "graphs")
        assert (early.good, early.decides) == (None, "") and "unknown" in early.text


def test_graphs_that_come_again_compile_once_each() -> None:
    """A, B, A, B: two compiles, not four."""
    found = verdict(traced(settled=False, syncs=4))
    assert (reason(found, "graphs").good, found.suits) == (None, True)
    assert "2 graphs in 4 syncs" in reason(found, "graphs").text and "compiles once" in reason(found, "graphs").text


def test_what_decides_nothing_is_not_why_it_cannot_be_said() -> None:
    found = verdict(traced(settled=False, syncs=1), flops=None, multiplications=None)
    assert found.suits is None and found.because.startswith("The share of matrix multiplications")


def test_only_a_read_in_each_step_counts() -> None:
    """What is read after a sync is not asked for after the last one that was seen: of three syncs, twice."""
    for count, told in ((3, True), (2, True), (1, False)):
        found = verdict(traced(reads=(HostRead(preflights.READ, "a value", count),)))
        assert bool([one for one in found.reasons if one.about == "reads"]) is told
    found = verdict(traced(reads=(HostRead(preflights.READ, "a value", 2),)))
    one = reason(found, "reads")
    assert "the host reads a value (In [3]:27) and waits" in one.text and one.good is False and one.todo
    assert found.because.endswith("To improve: device-to-host reads.")


def test_a_read_inside_of_a_library_is_not_the_persons_to_change() -> None:
    inside = SourceLine("transformers/masking_utils.py", 812, "if mask.all():")
    read = HostRead(preflights.ATTENTION, "a value: it follows from the inputs alone", 3, inside, known=True)
    one = reason(verdict(traced(reads=(read,))), "reads")
    assert "transformers itself reads a value (In [3]:21) on the host (transformers/masking_utils.py:812)" in one.text
    assert not one.todo and "zero" not in one.text


def test_graphs_that_take_turns_compile_once_each() -> None:
    graphs = tuple(replace(preflights.graph(nth), steady=nth == 3) for nth in (0, 1, 3))
    found = verdict(traced(graphs=graphs, syncs=8, sequence=(0, 1, 1, 2, 0, 1, 1, 2)))
    assert reason(found, "graphs").text == "3 graphs take turns, over 4 syncs: each compiles once"


@pytest.mark.parametrize(("rows", "good"), [(4, False), (8, True), (12, None), (32, True), (None, None)])
def test_batch(rows: int | None, good: bool | None) -> None:
    assert reason(verdict(traced(batch=rows)), "batch").good is good


def test_an_odd_batch_is_told_its_neighbours() -> None:
    assert reason(verdict(traced(batch=12)), "batch").todo == "8 or 16."


@pytest.mark.parametrize(
    ("rows", "good", "text"),
    [
        (256, True, "The batch of 256 over 8 devices (32 on each) is a multiple of 8 on each, the rows of a tile"),
        (32, False, "The batch of 32 over 8 devices (4 on each) is small: one tile has 8 rows"),
        (72, None, "The batch of 72 over 8 devices (9 on each) is not a multiple of 8 on each, the rows of a tile"),
        (250, None, "The batch of 250 over 8 devices is not a multiple of 8 on each, the rows of a tile"),
    ],
)
def test_under_spmd_each_device_has_a_part_of_the_batch(rows: int, good: bool | None, text: str) -> None:
    found = reason(verdict(traced(graphs=(preflights.graph(1, partitions=8),), batch=rows)), "batch")
    assert (found.good, found.text) == (good, text)
    assert good is not None or found.todo == ("64 or 128." if rows == 72 else "192 or 256.")


def test_the_batch_of_one_replica_is_not_said_to_be_a_ranks() -> None:
    assert "32 as compiled" in reason(verdict(traced(ranks_known=False)), "batch").text


@pytest.mark.parametrize(("plain", "good"), [(98, True), (80, None), (60, False)])
def test_padding(plain: int, good: bool | None) -> None:
    dimensions = (PaddedDimension(2, 128, 5, 1, "f32[2]"), PaddedDimension(100, 128, 30, 1, "f32[100]"))
    found = reason(verdict(padding=TilePadding(100 * MIB, plain * MIB, dimensions)), "padding")
    assert found.good is good
    assert good or "from 100 to 128" in found.text


def test_what_would_be_gained_is_named() -> None:
    found = verdict(traced(batch=4), padding=TilePadding(100 * MIB, 60 * MIB))
    assert found.suits is True and found.because.endswith("To improve: the batch, padding.")


def test_room_is_told_only_where_there_is_much() -> None:
    assert reason(verdict(), "memory").number == "73 % free"
    assert reason(verdict(needed=12 * GIB), "memory").number == ""


def test_reasons_come_in_the_order_of_their_weight() -> None:
    found = preflights.custom().results[0].verdict
    weights = [(one.decides == "", {False: 0, None: 1, True: 2}[one.good]) for one in found.reasons]
    assert weights == sorted(weights)


def test_a_verdict_says_what_it_cannot_know() -> None:
    assert any("how long you train" in one for one in verdict().unknown)


def test_every_threshold_says_where_it_is_from() -> None:
    for one in THRESHOLDS.values():
        assert one.source and one.of


def test_the_first_step_can_be_the_one_that_does_not_fit() -> None:
    found = result("v5e-8")
    memory = HbmUsage(20 * GIB, found.target.chip.available)
    first = replace(found.compiled[0], status="too-large", memory=memory)
    assert TargetResult(found.target, found.traced, (first, found.compiled[1])).verdict.suits is False


def test_a_network_of_scatters_is_not_called_one_of_multiplications() -> None:
    [one] = preflights.graph_network().results
    verdict = one.verdict
    assert (verdict.suits, verdict.word) == (None, "unknown")
    assert "2 scatters, 1 gather is not known" in verdict.because and "f32[400000,128] (In [3]:21)" in verdict.because
    few = replace(one.steady, costs=tuple(replace(each, bytes=8e3, padded=2048) for each in one.steady.costs))
    assert replace(one, compiled=(one.compiled[0], few)).verdict.suits
