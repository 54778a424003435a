"""A preflight as text, html and drawing, and the line of a compile in progress."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.panel import preflights
from tests.panel.parsed import Parsed
from tests.panel.preflights import GIB, MIB, result, traced
from tpu_magics.backends.lowered import HostRead, SourceLine
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight import to_html, to_text
from tpu_magics.panel.preflight_compare import _change, compared_table
from tpu_magics.panel.preflight_fit import HIGH, WIDE, Mark, PlotLine, plot
from tpu_magics.panel.preflight_profile import line_problems, unknown
from tpu_magics.panel.preflight_progress import TerminalLine, progress_html, progress_text
from tpu_magics.panel.preflight_topics import Topic, topics
from tpu_magics.preflight.compilation import CompileProgress
from tpu_magics.preflight.compile_result import Buffer, HbmUsage, Multiplications, PaddedDimension, TilePadding
from tpu_magics.preflight.fit import FitPoint, FitResult
from tpu_magics.preflight.report import AdviceResult, Preflight, TargetResult

MADE = ("bert", "too_large", "tiny", "custom", "refused", "fitted", "profiled", "compared")


def made(name: str) -> Preflight:
    found: Preflight = getattr(preflights, name)()
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


def page(found: Preflight) -> str:
    return Parsed(to_html(found)).text


def topic(found: Preflight, title: str) -> Topic:
    return next(one for one in topics(found) if one.title == title)


def cells(found: Preflight, title: str) -> list[tuple[str, ...]]:
    return [row.cells for row in topic(found, title).table.rows]


# -- both forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_html_stands_alone_and_is_whole(name: str) -> None:
    html = to_html(made(name))
    shown = Parsed(html)
    assert not {"script", "style", "link", "img"} & set(shown.tags)
    assert "http" not in html and "None" not in shown.text and "nan" not in shown.text.lower().split()


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("width", [80, 100, 120])
def test_text_keeps_to_its_width(name: str, width: int) -> None:
    text = to_text(made(name), width)
    assert "None" not in text
    assert max(map(len, text.split("\n"))) <= width


@pytest.mark.parametrize("name", MADE)
def test_text_without_times_is_the_same_in_every_run(name: str) -> None:
    found = made(name)
    other = [
        replace(
            one,
            traced=replace(one.traced, seconds=77.0),
            compiled=tuple(replace(each, seconds=99.0, kept=True, peak=1, versions={}) for each in one.compiled),
        )
        for one in found.results
    ]
    fits = tuple(replace(one, points=tuple(replace(point, seconds=55.0) for point in one.points)) for one in found.fit)
    assert to_text(replace(found, results=tuple(other), fit=fits), no_times=True) == to_text(found, no_times=True)


def test_one_look() -> None:
    text = page(preflights.bert())
    for part in (
        "Preflight of train batch 32 on each rank, bf16; no step was executed",
        "v5litepod-8 ✓ fits 8 chips, 8 ranks",
        "HBM 4.3 of 15.75 GiB 73 % free",
        "Step time (estimate) ≥ 25.6 ms ≤ 39 steps/s",
        "Bound by memory compute 11 ms",
        "bf16 99 % of matmul FLOPs",
        "Padding 2 % 102 MiB",
        "Compile 62.8 s 2 graphs",
        "Compile 76 s cached",
    ):
        assert part in text


def test_the_estimate_is_called_one_in_both_forms() -> None:
    assert "Step time (estimate) ≥" in page(preflights.bert())
    for text in (page(preflights.bert()), flat(to_text(preflights.bert()))):
        assert "The time is an estimate, a lower bound" in text


def test_what_a_program_is_missing_has_one_reason() -> None:
    text = page(preflights.too_large())
    assert text.count("Cost, bf16, padding n/a no program was compiled") == 2
    assert "HBM n/a the compiler refused it" in page(preflights.refused())


@given(st.text(min_size=1, max_size=40))
def test_what_people_wrote_is_only_text(text: str) -> None:
    evil = f"<script>alert('{text}')</script>"
    place = SourceLine(evil, 3, evil)
    found = preflights.custom()
    one = found.results[0]
    buffers = tuple(replace(each, op=evil, shape=evil, place=place) for each in one.steady.buffers)
    trace = replace(one.traced, reads=(HostRead(place, evil, 5),), changes=(("new-code", evil),), notes=(evil,))
    spoilt = TargetResult(
        one.target, trace, tuple(replace(each, buffers=buffers, notes=(evil,)) for each in one.compiled)
    )
    fit = FitResult(one.name, evil, None, None, (FitPoint(8, "failed", 5, 6, None, evil),), 8, (evil,))
    made_of = Preflight(evil, (spoilt,), (fit,))
    assert "script" not in Parsed(to_html(made_of)).tags
    assert "\x1b" not in to_text(made_of)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needed", "shown", "free"),
    [
        (11.2 * GIB, "11.2 of 15.75 GiB", "29 % free"),
        (184.1 * GIB, "184 of 15.75 GiB", "168 GiB too much"),
        (15.74 * GIB, "15.74 of 15.75 GiB", "less than 1 % free"),
        (15.79 * GIB, "15.79 of 15.75 GiB", "43 MiB too much"),
        (15.75 * GIB, "15.75 of 15.75 GiB", "2 MiB too much"),
        (15.7477 * GIB, "15.748 of 15.75 GiB", "less than 1 % free"),
        (431 * MIB, "431 MiB of 15.75 GiB", "97 % free"),
        (2100 * GIB, "2,100 of 15.75 GiB", "2,084 GiB too much"),
    ],
)
def test_memory_in_words(needed: float, shown: str, free: str) -> None:
    memory = HbmUsage(int(needed), result("v5e-8").target.chip.available)
    assert (words.used(memory), words.headroom(memory)) == (shown, free)


def test_memory_whose_limit_is_not_known() -> None:
    memory = HbmUsage(3 * GIB, None)
    assert words.used(memory) == "3 GiB" and words.headroom(memory).startswith("n/a (")


def test_the_bar_shows_parts_of_what_there_is() -> None:
    html = to_html(preflights.bert())
    bar = re.search(r'role="img" aria-label="4.3 of 15.75 GiB of HBM".*?</div></div>', html)
    assert bar is not None
    shares = [float(one) for one in re.findall(r"width:([0-9.]+)%", bar[0])]
    assert sum(shares) == pytest.approx(100 * 4.3 / 15.75, abs=0.3) and len(shares) == 4


def test_a_full_bar_has_a_line_where_memory_ends() -> None:
    html = to_html(preflights.too_large())
    assert re.search(r"left:8\.5\d%", html) and re.search(r"width:100\.00%", html)


def test_shares_are_short_in_a_figure() -> None:
    found = Preflight("f", (result("v5e-8", multiplications=Multiplications({"bf16": 1.0, "f32": 999.0})),))
    assert "bf16 < 1 % of matmul FLOPs" in page(found)


def test_kinds_add_up() -> None:
    rows = {one[0]: one[1] for one in cells(preflights.bert(), "HBM by kind")}
    assert rows["outputs that reuse the memory of arguments"].startswith("-") and rows["needed"] == "4.3 GiB"


def test_the_first_step_may_need_most() -> None:
    one = result("v5e-8")
    memory = HbmUsage(12 * GIB, one.target.chip.available)
    found = Preflight("f", (replace(one, compiled=(replace(one.compiled[0], memory=memory), one.compiled[1])),))
    assert "12 of 15.75 GiB 24 % free in the graph of sync 1" in page(found)


# -- what is folded away ---------------------------------------------------------------------------------------------


def test_details_are_folded_and_answer_in_a_line() -> None:
    found = preflights.custom()
    html = to_html(found)
    assert html.count("<details") == len(topics(found)) and "<details open" not in html
    for one in topics(found):
        assert one.summary in page(found)


def test_buffers_have_their_lines() -> None:
    one = Preflight("f", (result("v5e-8"),))
    assert cells(one, "Largest buffers")[0] == (
        *("144 MiB", "bf16[32,12,384,512]", "temporary", "aten__softmax"),
        "In [3], line 21\nloss = model(**batch).loss",
    )
    assert "14 MiB of padding" in cells(one, "Largest buffers")[2][1]


def test_padding_names_the_dimension() -> None:
    assert cells(preflights.tiny(), "Padding of tiles")[0][:3] == ("hidden.weight 100 → 128", "1 MiB", "33 %")
    text = "1 MiB, largest part hidden.weight 100 → 128: 33 % of the HBM in use"
    assert topic(preflights.tiny(), "Padding of tiles").summary == text
    assert "of the HBM in use" in topic(preflights.tiny(), "Padding of tiles").table.columns


def test_the_dimensions_of_padding_add_up_to_its_headline() -> None:
    lost = TilePadding(3 * MIB, 2 * MIB, (PaddedDimension(100, 128, MIB // 4, 8, "f32[64,100]"),))
    found = Preflight("f", (result("v5e-8", padding=lost),))
    assert [row[:2] for row in cells(found, "Padding of tiles")] == [("100 → 128", "256 KiB"), ("others", "768 KiB")]
    assert "Padding 33 % 1 MiB of the memory in use" in page(found)


def test_several_targets_are_named_in_each_table() -> None:
    rows = [row[:2] for row in cells(preflights.bert(), "Padding of tiles")]
    assert rows == [(name, text) for name in ("v5litepod-8", "v6e-8") for text in ("2 → 128", "others")]
    assert topic(preflights.bert(), "Cost of a step").summary.endswith("on a device (v5litepod-8)")
    assert cells(preflights.bert(), "Notes") == [("v6e-8: The compiler uses 31.5 of the 32 GiB.",)]
    assert topic(preflights.bert(), "Cost of a step").table.columns == ("", "v5litepod-8", "v6e-8")


def test_cost_says_where_its_numbers_are_from() -> None:
    notes = " ".join(topic(preflights.tiny(), "Cost of a step").table.notes)
    assert "one bf16 pass" in notes and "In loops" not in notes and "gives no bound" in notes
    rows = {one[0]: one[1:] for one in cells(preflights.bert(), "Cost of a step")}
    assert rows["bytes by XLA's own count"] == ("52 GB", "52 GB") and "time of a full cycle" not in rows
    assert "one bf16 pass" not in " ".join(topic(preflights.bert(), "Cost of a step").table.notes)
    looped = topic(Preflight("f", (result("v5e-8", loops=True),)), "Cost of a step").table
    assert any(one.startswith("In loops, multiplications count once per iteration") for one in looped.notes)
    assert "n/a (in loops, multiplications" in looped.rows[1].cells[1]
    floor = Preflight("f", (result("v5e-8", hbm_bytes=None),))
    assert "each argument and output moved once" in " ".join(topic(floor, "Cost of a step").table.notes)


def test_a_rate_that_python_cannot_keep_up_with_says_so() -> None:
    found = preflights.tiny()
    assert "steps/s dispatching a step from Python takes longer" in page(found)
    rows = {one[0]: one[1] for one in cells(found, "Cost of a step")}
    assert rows["samples/s per chip"].endswith(", without the dispatch of steps")
    assert "1.2 ms of one core" in " ".join(topic(found, "Cost of a step").table.notes)
    assert "dispatching a step from" not in page(preflights.bert())


def test_graphs_that_take_turns_have_figures_each() -> None:
    """Accumulation of four: what is told of a step is of the whole turn."""
    graphs = tuple(replace(preflights.graph(nth), steady=nth == 3) for nth in (0, 1, 3))
    turns = traced(graphs=graphs, syncs=8, sequence=(0, 1, 1, 2, 0, 1, 1, 2), rows=(32, 32, 32))
    found = Preflight("f", (result("v5e-8", turns),))
    assert "≥ 103 ms for 4 syncs of 3 alternating graphs the last one ≥ 25.6 ms" in page(found)
    assert topic(found, "Graphs").summary == "3 graphs: those of syncs 1, 2 and 4 alternate, over 4 syncs"
    shown = cells(found, "Graphs")
    assert [row[0] for row in shown] == [f"sync {n}\n{often} of 4 later syncs" for n, often in ((1, 1), (2, 2), (4, 1))]
    assert {row[-1] for row in shown} == {"≥ 25.6 ms"}
    rows = {one[0]: one[1] for one in cells(found, "Cost of a step")}
    assert rows["time of a full cycle"] == "≥ 103 ms (4 syncs)"
    assert rows["samples/s in total"] == "≤ 9,980 (in a cycle 1,024)"
    unknown = Preflight("f", (result("v5e-8", replace(turns, rows=())),))
    rows = {one[0]: one[1] for one in cells(unknown, "Cost of a step")}
    assert rows["samples/s in total"].startswith("n/a (graphs take turns")


def test_what_is_no_bound_has_no_sign_of_one() -> None:
    text = page(Preflight("f", (result("v5e-8", guessed=True),)))
    assert "Step time (estimate) ≈ 25.6 ms ≈ 39 steps/s" in text and "≥" not in text and "≤" not in text
    assert "an estimate, not a bound" in text and "a lower bound" not in text


def test_fewer_ranks_than_the_target_has() -> None:
    found = Preflight("f", (result("v5e-8", ranks=1),))
    text = page(found)
    assert "batch 32 on one rank" in text and "1 of 8 chips, 1 rank" in text and "(batch 32)" in text
    fit = FitResult("v5litepod-8", "batch", 9, 8, (FitPoint(8, "fits", GIB, 15 * GIB),), 1, ())
    assert "v5litepod-8 9 8 8 8 on 1 chip" in flat(to_text(replace(found, fit=(fit,))))


def test_of_one_replica_only_what_it_does_itself_is_told() -> None:
    found = Preflight("f", (result("v5e-8", traced(ranks_known=False)),))
    fit = FitResult("v5litepod-8", "batch", 9, 8, (FitPoint(8, "fits", GIB, 15 * GIB),), 1, ())
    text = page(replace(found, fit=(fit,)))
    assert "batch 32 on one replica" in page(found) and "8 chips; the program of one replica" in text
    assert "per chip in total v5litepod-8 9 8 8 n/a (the program of one replica)" in text
    rows = {one[0]: one[1] for one in cells(found, "Cost of a step")}
    assert rows["samples/s in total"] == "n/a (the program of one replica)"
    assert rows["samples/s per chip"].startswith("≤ ")


def test_under_spmd_the_batch_is_over_all_devices() -> None:
    results = [result(f"v5e-{n}", traced(graphs=(preflights.graph(1, partitions=n),), batch=256)) for n in (4, 8)]
    text = page(Preflight("f", tuple(results)))
    assert "batch 256 over 4 or 8 devices" in text and "8 chips, SPMD over 8" in text
    fit = FitResult("v5litepod-8", "batch", 99, 64, (FitPoint(64, "fits", GIB, 15 * GIB),), 1, (), 8)
    text = page(Preflight("f", (results[1],), (fit,)))
    assert "largest multiple of 8 on each device per chip in total v5litepod-8 99 64 8 64 on 8 chips" in text


def test_an_unknown_batch_is_said_to_be_unknown() -> None:
    shown = cells(Preflight("f", (result("v5e-8", traced(batch=None)),)), "Cost of a step")
    rows = {one[0]: one[1] for one in shown}
    assert rows["samples/s in total"] == "n/a (the batch size is unknown)"


def test_a_program_without_multiplications() -> None:
    found = Preflight("f", (result("v5e-8", multiplications=Multiplications()),))
    assert "bf16 none no matmuls" in page(found)


# -- what stands in the way ------------------------------------------------------------------------------------------


def test_too_large_says_how_much_and_what_to_do() -> None:
    text = page(preflights.too_large())
    assert "✗ does not fit It needs 184 GiB, and a program on a v5e chip has 15.75 GiB." in text
    assert "a smaller batch (--fit NAME finds the largest), --precision bf16, gradient checkpointing" in text


def test_bf16_is_not_advised_to_who_has_it() -> None:
    found = preflights.too_large()
    bf16 = tuple(replace(one, traced=replace(one.traced, precision="bf16")) for one in found.results)
    assert "--precision bf16" not in page(replace(found, results=bf16)).partition("Largest buffers")[0]


def test_a_changing_graph_shows_its_causes() -> None:
    text = page(preflights.custom())
    assert "✗ changes in each step Each of 5 steps had a different graph: on a TPU each step compiles." in text
    assert "input-shape: input_ids now int64[32,129], before int64[32,128]" in text
    one = Preflight("f", (result("v5e-8", traced(settled=False, syncs=1)),))
    assert "! 1 step only Only 1 step traced" in page(one)


def test_graphs_that_come_again_are_no_compile_in_each_step() -> None:
    """A, B, A, B: two compiles."""
    text = page(Preflight("f", (result("v5e-8", traced(settled=False, syncs=4)),)))
    assert "! changes 2 graphs in 4 syncs, and no two consecutive steps had the same one" in text
    assert "each step compiles" not in text and "2 graphs: later steps" not in text


def test_graphs_are_told_by_their_sync() -> None:
    assert topic(preflights.bert(), "Graphs").summary == "2 graphs: later steps run that of sync 2"
    graphs = (preflights.graph(0), preflights.graph(3), preflights.graph(4))
    both = Preflight("f", (result("v5e-8", traced(graphs=graphs)),))
    assert topic(both, "Graphs").summary == "3 graphs: later steps run those of syncs 4 and 5"
    assert [row[0] for row in cells(both, "Graphs")] == ["sync 1", "sync 4\nlater steps", "sync 5\nlater steps"]
    assert topic(preflights.custom(), "Graphs").summary == "5 graphs in 5 syncs"


def test_the_graph_that_does_not_fit_is_named() -> None:
    one = result("v5e-8", traced(graphs=(preflights.graph(2), preflights.graph(5))))
    large = replace(one.compiled[0], status="too-large", memory=HbmUsage(20 * GIB, one.target.chip.available))
    text = page(Preflight("f", (replace(one, compiled=(large, one.compiled[1])),)))
    assert "This is the graph of sync 3; that of sync 6 fits." in text and "first step" not in text


def test_a_value_that_read_zero_is_told_with_its_line() -> None:
    text = page(preflights.custom())
    assert "! read zero losses.append(loss.item()) (In [3], line 27), 5 times" in text


def test_a_refusal_has_the_line_and_the_compilers_text() -> None:
    text = page(preflights.refused())
    assert "my_kernel (In [3], line 21): the TPU does not know this custom call." in text
    assert "The compiler says: INTERNAL: Mosaic failed" in text
    assert "! no result The compile process was stopped at 12 GiB of host memory." in text


def test_a_library_s_read_and_a_known_value_are_told_as_such() -> None:
    inside = SourceLine("transformers/masking_utils.py", 812)
    library = HostRead(
        preflights.ATTENTION, "a value: it follows from the inputs alone, and was computed", 3, inside, True
    )
    text = page(Preflight("f", (result("v5e-8", traced(reads=(library,))),)))
    assert (
        "! read inside transformers (transformers/masking_utils.py:812), called from loss = model(**batch).loss" in text
    )
    assert "(In [3], line 21), 3 times, true value" in text and "gives zero" not in text
    both = page(Preflight("f", (result("v5e-8", traced(reads=(library, HostRead(preflights.READ, "a value", 3)))),)))
    assert "! read zero" in both and "gives zero unless noted" in both


def test_gradients_that_wait_for_the_next_step_are_told() -> None:
    kept = Buffer(20 * MIB, 20 * MIB, "f32[2048,784]", "{1,0:T(8,128)}", "output")
    graphs = tuple(preflights.graph(n, parameters=("f32[2048,784] 0.weight",), donors=(0,)) for n in (0, 1))
    memory = HbmUsage(131 * MIB, 16 * GIB, 67 * MIB, 111 * MIB, 67 * MIB, 17 * MIB, 3 * MIB)
    one = result("v5e-8", traced(graphs=graphs), memory=memory, buffers=(kept,))
    first = replace(one.compiled[0], buffers=())
    text = page(Preflight("f", (replace(one, compiled=(first, one.compiled[1])),)))
    assert "Gradients ! kept Outputs of 44 MiB have the shapes of parameters" in text
    assert "call zero_grad(set_to_none=True) right after optimizer.step() to free them" in text
    assert "zero_grad" not in page(preflights.bert())


def test_of_a_program_that_was_not_made_no_cost_is_told() -> None:
    """The dump of a compile that was given up has FLOPs and padding as well."""
    multiplied = Multiplications({"f32": 1.4e14})
    lost = TilePadding(2 * GIB, GIB, ())
    facts = {"flops": None, "bytes_accessed": None, "hbm_bytes": 5e11, "multiplications": multiplied, "padding": lost}
    memory = HbmUsage(53 * GIB, 16 * GIB)
    found = Preflight("f", (result("v5e-8", status="too-large", memory=memory, **facts),))
    one = found.results[0]
    every = replace(one, compiled=tuple(replace(each, **facts, memory=memory) for each in one.compiled))
    text = page(replace(found, results=(every,)))
    assert "Cost, bf16, padding n/a no program was compiled" in text
    assert not {"FLOP", "steps/s", "samples/s", "Padding of tiles"} & set(text.replace(",", "").split())


# -- verdict ---------------------------------------------------------------------------------------------------------


def test_targets_with_one_verdict_share_it() -> None:
    text = page(preflights.bert())
    assert text.count("✓ suits a TPU") == 1
    large = page(preflights.too_large())
    assert (
        "It does not fit into the HBM: 11.7 times what is available (v5litepod-8), 5.89 times what is available"
        in large
    )
    assert large.count("✗ needs changes") == 1
    assert "at most 43 % (v5litepod-8), at most 18 % (v6e-8)" in text
    assert "v5litepod-8 ✗ needs changes" in page(preflights.refused())


def test_sides_are_words_and_symbols() -> None:
    text = to_text(preflights.custom())
    assert re.search(r"^✗ against  ", text, re.M) and re.search(r"^✓ for  ", text, re.M)


def test_fit_is_not_advised_where_it_was_done() -> None:
    assert "--fit NAME" in page(preflights.bert()) and "--fit NAME" not in page(preflights.fitted())


# -- the search ------------------------------------------------------------------------------------------------------


def test_the_largest_sizes_by_chip_and_in_all() -> None:
    text = flat(to_text(preflights.fitted()))
    assert "v5litepod-8 183 176 176 1,408 on 8 chips" in text
    assert "v5litepod-8: batch_size = 183 fits, 184 does not: both were compiled." in text
    assert "184 ✗ too large: 15.79 GiB -" in text


def test_a_size_at_the_limit_says_by_how_much() -> None:
    [one] = preflights.fitted().fit[:1]
    available = one.points[0].available or 0
    close = replace(one.points[-1], status="too-large", needed=available + 2**21, available=available)
    at_limit = replace(preflights.fitted(), fit=(replace(one, points=(*one.points[:-1], close)),))
    assert "too large: 15.75 GiB, 2 MiB too much" in flat(to_text(at_limit))


def test_two_ranks_on_a_chip() -> None:
    one = result("v3-8")
    fit = FitResult(one.name, "batch", 9, 8, (FitPoint(8, "fits", GIB, 15 * GIB),), one.target.ranks, ())
    assert "v3-8 9 8 16 64 on 4 chips" in flat(to_text(Preflight("f", (one,), (fit,))))


def test_a_search_without_an_answer() -> None:
    one = result("v5e-8")
    point = FitPoint(8, "failed", error="The compile process died.")
    fit = FitResult(one.name, "batch", None, None, (point,), 8, ("The search ended early.",))
    found = Preflight("f", (one,), (fit,))
    assert "The compile process died." in page(found) and "<svg" not in to_html(found)
    assert "v5litepod-8 n/a n/a" in page(found)


def drawing(found: Preflight) -> str:
    return to_html(found).partition("<svg")[2].partition("</svg>")[0]


def test_the_drawing_has_limits_tries_and_names() -> None:
    svg = drawing(preflights.fitted())
    assert svg.count("stroke-dasharray") == 2
    assert "v5litepod-8: 15.75 GiB" in svg and ">176<" in svg and ">384<" in svg
    assert "batch_size" in svg and "HBM of a device, GiB" in svg


def test_what_needs_much_more_is_drawn_at_the_top() -> None:
    line = PlotLine("v5e", 15.75, (Mark(32, 4.0, True, True), Mark(40, 500.0, False), Mark(5000, 900.0, False)))
    svg = plot([line], "n", "GiB")
    assert "500 GiB" in svg and "900 GiB" not in svg


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(0.001, 5000), st.booleans()),
        max_size=12,
        unique_by=lambda mark: mark[0],
    ),
    st.floats(1, 200),
)
def test_every_mark_lies_in_the_drawing(marks: list[tuple[int, float, bool]], limit: float) -> None:
    svg = plot([PlotLine("v5e", limit, tuple(Mark(*mark) for mark in marks))], "n", "GiB")
    if not marks:
        assert svg == ""
        return
    for x, y in re.findall(r'(?:cx|x)="(-?[0-9.]+)" (?:cy|y)="(-?[0-9.]+)"', svg):
        assert -1 <= float(x) <= WIDE + 1 and -1 <= float(y) <= HIGH + 1
    Parsed(svg)


# -- progress --------------------------------------------------------------------------------------------------------


def now(**facts: Any) -> CompileProgress:
    known = {"state": "compiling", "elapsed": 12.3, "expected": 30.0, "resident": int(2.1 * GIB), "count": 2}
    return CompileProgress(**{"target": "v5litepod-8", "graph": 0, **known, **facts})


FIRST, HELD = "v5litepod-8, graph 1 of 2", ", compiler memory 2.1 GiB"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, f"{FIRST}: compiling, 12 s, about 17 s left{HELD}"),
        ({"expected": None}, f"{FIRST}: compiling, 12 s, remaining time unknown{HELD}"),
        ({"elapsed": 75}, f"{FIRST}: compiling, 1 min 15 s, longer than the expected 30 s{HELD}"),
        ({"state": "starting", "count": 1, "resident": None}, "v5litepod-8: starting the compiler, 12 s"),
        ({"state": "done"}, f"{FIRST}: compiled in 12 s"),
        ({"state": "kept"}, f"{FIRST}: cached from an earlier compile"),
    ],
)
def test_progress_in_a_line(facts: dict[str, Any], text: str) -> None:
    assert progress_text(now(**facts)) == text
    assert text in Parsed(progress_html(now(**facts))).text


def test_a_bar_only_where_the_end_is_known() -> None:
    assert "width:41%" in progress_html(now()) and "width:100%" in progress_html(now(elapsed=99))
    assert "width" not in progress_html(now(expected=None))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminals_line_is_written_again() -> None:
    stream = Terminal()
    line = TerminalLine(stream)
    line.show(now())
    line.show(now(elapsed=13.4))
    line.close()
    assert stream.getvalue().count("\r\x1b[K") == 3 and "\n" not in stream.getvalue()


def test_a_file_gets_a_line_for_each_state() -> None:
    stream = io.StringIO()
    line = TerminalLine(stream)
    for one in (now(state="starting"), now(), now(elapsed=20), now(state="done", elapsed=31)):
        line.show(one)
    line.close()
    assert len(stream.getvalue().splitlines()) == 3 and "\x1b" not in stream.getvalue()


# -- the profile ------------------------------------------------------------------------------------------------------


def test_a_profile_has_both_figures_and_names_what_is_not_estimated() -> None:
    found = made("profiled")
    for text in (flat(to_text(found)), page(found)):
        assert "At least 25.6 ms; compiler's estimate 15.4 ms." in text
        assert "Not estimated, and not in it: 1 transfer between chips, 1 scatter, 1 gather (at least 11 ms)" in text
        assert "Neither was measured on a TPU" in text


def test_several_operations_of_a_kind_are_told_in_the_plural() -> None:
    [one] = made("profiled").results
    costs = one.steady.costs
    several = replace(one.steady, costs=(*costs, *(cost for cost in costs if cost.kind in ("collective", "scatter"))))
    found = replace(one, compiled=(one.compiled[0], several))
    assert "2 transfers between chips, 2 scatters, 1 gather (" in unknown(found.profile)


def test_a_profile_tells_modules_lines_operations_and_memory() -> None:
    found = made("profiled")
    text, shown = flat(to_text(found)), page(found)
    for part in (
        "In [3], line 21",
        "loss = model(**batch).loss",
        "encoder.layer.0",
        "· · dense",
        "over all ranks",
        "22 % of it is padding",
    ):
        assert part in text
    for part in ("matmuls and convolutions", "AdamW", "In [3], line 24", "bf16[32,128,768]", "arguments 3 KiB"):
        assert part in text and part in shown
    drawing = Parsed(to_html(found))
    assert drawing.tags.count("svg") == 1 and drawing.tags.count("polygon") == 1


def test_a_profile_without_estimates_says_why() -> None:
    [one] = made("profiled").results
    bare = replace(one.steady, costs=tuple(replace(cost, cycles=None) for cost in one.steady.costs))
    found = Preflight("train", (replace(one, compiled=(one.compiled[0], bare)),), profiled=True)
    for text in (flat(to_text(found)), page(found)):
        assert "compiler's estimate n/a (this libtpu (0.0.52) notes no estimates of cycles" in text
        assert "10 ms" in text


def test_without_the_option_the_profile_is_a_line_that_unfolds() -> None:
    found = replace(made("profiled"), profiled=False)
    shown = topic(found, "Time by kind")
    assert shown.summary.startswith("compiler's estimate 15.4 ms: matmul 90 %")
    assert shown.table.notes[0].endswith("--profile.")


# -- variants and advice ----------------------------------------------------------------------------------------------


def test_variants_are_told_with_the_best_of_those_that_fit() -> None:
    found = made("compared")
    rows = [" ".join(row.cells) for row in compared_table(found).rows]
    assert rows[1].startswith("batch=64 ✓ fits 7 of 15.75 GiB") and rows[1].endswith("best")
    assert [row.endswith("best") for row in rows] == [False, True, False, False]
    assert "✗ too large" in rows[2] and "n/a: batch 3 is not a multiple of 8" in rows[3]
    assert "batch=64" in page(found) and "HBM of a device, GiB" in to_html(found)
    small = [
        replace(
            one, results=tuple(result("v5e-8", costs=preflights.costs(), needed=10 * nth * 2**20) for _ in one.results)
        )
        for nth, one in enumerate(found.compared, 1)
    ]
    assert "HBM of a device, MiB" in to_html(replace(found, compared=tuple(small)))


def test_the_axes_of_a_mesh_are_told() -> None:
    [one] = made("profiled").results
    graphs = tuple(
        replace(each, replicas=1, partitions=8, mesh=(("data", 4), ("model", 2))) for each in one.traced.graphs
    )
    sharded = replace(one, traced=replace(one.traced, graphs=graphs))
    assert words.target_text(sharded) == "8 chips, SPMD over 8 (data=4, model=2)"


def test_advice_is_what_gained_and_what_did_not_is_named() -> None:
    text = flat(to_text(made("compared")))
    assert "multiply in bf16" in text and "--precision bf16" in text and "In [3], line 21" in text
    assert "Tried, and not worth it: batch = 64 (0 %); batch = 3 (the function does not run so: it fails)." in text
    assert "less than 1 %" in _change(0.001) and [_change(share) for share in (0.2, -0.2, 0)] == [
        "+20 %",
        "-20 %",
        "0 %",
    ]
    assert _change(0.001) == _change(-0.001)
    nothing = replace(made("compared"), advice=AdviceResult(asked=True))
    assert "No change that applies to this step gains 3 % or more." in flat(to_text(nothing))
    unknown = replace(made("compared"), advice=AdviceResult(asked=True, missing="no estimate"))
    assert "Nothing could be tried: no estimate." in flat(to_text(unknown))


def test_lines_have_their_share_for_jupyterlab() -> None:
    [one] = made("profiled").results
    first, second = line_problems(one, {"In [3]": "abc"})
    assert (first.badge, first.tone) == ("93 % of the step", "info")
    assert first.site is not None and (first.site.cell_id, first.site.line) == ("abc", 21)
    assert first.text == (
        "14.4 ms: forward 902 µs, backward 13.5 ms; matmuls and convolutions 13.8 ms, elementwise 300 µs, copies and "
        "changes of layout 267 µs."
    )
    assert second.badge == "7 % of the step"
