"""The result object: what fits, what is steady, and its JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.panel import preflights
from tests.panel.preflights import GIB, MIB, compiled, graph, result, traced
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.compile_result import Buffer, HbmUsage
from tpu_magics.preflight.report import Preflight, TargetResult, retained_gradients
from tpu_magics.preflight.targets import parse


def with_first(status: str, needed: float) -> TargetResult:
    """A result whose first step is of that status and needs so much."""
    one = result("v5e-8")
    memory = HbmUsage(int(needed), one.target.chip.available)
    return replace(one, compiled=(replace(one.compiled[0], status=status, memory=memory), one.compiled[1]))


def test_it_fits_where_every_graph_fits_every_target() -> None:
    assert preflights.bert().fits and not preflights.too_large().fits
    mixed = Preflight("f", (result("v5e-8"), *preflights.too_large().results[1:]))
    assert not mixed.fits and mixed.results[0].fits


@pytest.mark.parametrize("status", ["too-large", "refused", "failed"])
def test_the_worst_graph_decides(status: str) -> None:
    one = with_first(status, 1 * GIB)
    assert (one.status, one.fits, one.worst) == (status, False, one.compiled[0])


@pytest.mark.parametrize("status", ["too-large", "refused"])
def test_what_is_proved_decides_before_what_has_no_answer(status: str) -> None:
    one = with_first(status, 1 * GIB)
    died = replace(one.compiled[1], status="failed", memory=None, error="it died")
    for answers in ((one.compiled[0], died), (died, one.compiled[0])):
        assert replace(one, compiled=answers).status == status
    assert replace(one, compiled=(one.compiled[1], died)).status == "failed"


def test_of_graphs_that_fit_the_one_that_needs_most_is_told() -> None:
    assert with_first("fits", 9 * GIB).worst.memory == with_first("fits", 9 * GIB).compiled[0].memory
    assert with_first("fits", 1 * GIB).worst is not with_first("fits", 1 * GIB).compiled[0]
    same = result("v5e-8")
    assert same.worst is same.steady


def test_headroom() -> None:
    one = result("v5e-8", needed=4 * GIB)
    assert one.headroom == pytest.approx(1 - 4 * GIB / (one.target.chip.available or 0))
    assert (preflights.too_large().results[0].headroom or 0) < -10
    assert preflights.refused().results[0].headroom is None


def test_the_steady_graph_is_found_by_its_mark() -> None:
    trace = traced(graphs=(graph(1), graph(0)))
    one = TargetResult(parse("v6e-1"), trace, (compiled("v6e-1", 1), compiled("v6e-1", 0)))
    assert one.graph is trace.graphs[0] and one.steady is one.compiled[0]
    unsettled = traced(graphs=(replace(graph(0), nth=0), replace(graph(0), nth=1)))
    other = TargetResult(parse("v6e-1"), unsettled, one.compiled)
    assert other.graph is unsettled.graphs[1]


@pytest.mark.parametrize("name", ["v5e-8", "v5litepod-8", "V5E-8"])
def test_a_target_goes_by_all_its_names(name: str) -> None:
    found = preflights.bert()
    assert found[name] is found.results[0]


def test_a_target_that_was_not_asked_for() -> None:
    for name in ("v4-8", "nonsense"):
        with pytest.raises(TpuMagicsError, match=f"There is no result for '{name}'.\nWhy: .*v5litepod-8, v6e-8"):
            preflights.bert()[name]


def test_samples_a_second() -> None:
    one = result("v3-8")  # 4 chips, 2 ranks on each
    steps = one.roofline.steps_per_second
    assert one.rate is not None and steps is not None
    assert one.rate.batch == 32 * 8
    assert one.rate.every == pytest.approx(256 * steps) and one.rate.chip == pytest.approx(64 * steps)
    assert result("v3-8", traced(batch=None)).rate is None
    assert preflights.too_large().results[0].rate is None


def test_under_spmd_the_batch_is_that_of_all() -> None:
    one = result("v5e-8", traced(graphs=(graph(1, partitions=8),), batch=256))
    assert one.rate is not None and one.rate.batch == 256
    assert (one.ranks, one.devices, one.chips, one.everywhere(256), one.on_chip(256)) == (1, 8, 8, 256, 32)


@pytest.mark.parametrize(("name", "ranks", "chips"), [("v5e-8", 1, 1), ("v5e-8", 4, 4), ("v3-8", 4, 4), ("v3-8", 8, 4)])
def test_sums_are_of_the_ranks_that_were_asked_for(name: str, ranks: int, chips: int) -> None:
    """-n 1 for v5e-8 is one rank on one chip, and not eight."""
    one = result(name, ranks=ranks)
    assert (one.ranks, one.chips, one.everywhere(32), one.on_chip(32)) == (ranks, chips, 32 * ranks, 32 * ranks / chips)
    steps = one.roofline.steps_per_second
    assert one.rate is not None and steps is not None
    assert one.rate.every == pytest.approx(32 * ranks * steps) and one.rate.chip == pytest.approx(
        one.rate.every / chips
    )
    assert (one.to_dict()["ranks"], one.to_dict()["chips"]) == (ranks, chips)


def test_of_one_replica_nothing_is_summed() -> None:
    """TensorFlow's program does not say of how many it is one."""
    one = result("v5e-8", traced(ranks_known=False))
    assert one.ranks is None and one.everywhere(32) is None and one.rate is not None
    assert (one.rate.every, one.rate.batch) == (None, None)
    assert one.rate.chip == pytest.approx(32 * (one.roofline.steps_per_second or 0))
    assert one.to_dict()["samples_per_second"]["every"] is None


def test_an_estimate_that_is_no_bound_is_not_called_one() -> None:
    data = result("v5e-8", guessed=True).to_dict()["roofline"]
    assert data["estimate"] == "no bound of the time" and not data["least"]


def test_a_device_of_two_in_a_chip_has_half_of_its_peak() -> None:
    one = result("tpu7x-8")
    assert one.roofline.compute == pytest.approx(2.16e12 / (2307e12 / 2)) and one.device == "7x device (half a chip)"


def test_json_holds_all_but_the_programs() -> None:
    found = preflights.fitted()
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    one = data["results"][0]
    assert (data["fits"], one["target"]["name"], one["status"]) == (True, "v5litepod-8", "fits")
    assert one["graphs"][1]["memory"]["needed"] == found.results[0].steady.memory.needed  # type: ignore[union-attr]
    assert [each["steady"] for each in one["graphs"]] == [False, True]
    assert one["roofline"]["estimate"] == "a lower bound of the time" and one["roofline"]["bound"] == "memory"
    assert one["verdict"]["suits"] is True and one["verdict"]["reasons"][0]["text"]
    assert data["fit"][0]["largest"] == 183 and data["fit"][0]["points"][0]["size"] == 32
    assert "module" not in json.dumps(data["results"][0]["trace"])


def test_json_of_what_is_not_known_is_null() -> None:
    one = json.loads(json.dumps(preflights.refused().to_dict(), allow_nan=False))["results"][0]
    assert one["roofline"]["seconds"] is None and one["roofline"]["not_known"]
    assert (one["headroom"], one["bf16_share"], one["samples_per_second"]) == (None, None, None)


def test_it_is_short_as_an_expression() -> None:
    assert repr(preflights.too_large()) == "<Preflight of train: v5litepod-8 too-large, v6e-8 too-large>"


def test_the_search_of_a_target() -> None:
    found = preflights.fitted()
    assert found.largest("v6e-8") is found.fit[1]
    with pytest.raises(TpuMagicsError, match="There was no search for the largest size"):
        preflights.bert().largest("v6e-8")


# -- graphs that take turns ------------------------------------------------------------------------------------------

ACCUMULATION = (0, 1, 1, 2, 0, 1, 1, 3, 0, 1, 1, 3)  # of four: the first update makes the optimiser's state


def accumulating(rows: tuple[int | None, ...] = ()) -> TargetResult:
    graphs = tuple(replace(graph(nth), steady=nth == 7) for nth in (0, 1, 3, 7))
    return result("v5e-8", traced(graphs=graphs, syncs=12, sequence=ACCUMULATION, rows=rows))


def test_a_step_of_an_accumulation_is_a_full_turn() -> None:
    one = accumulating()
    assert one.turn == (0, 1, 1, 3) and one.steady is one.compiled[3]
    seconds = [one.roofline_of(one.compiled[place]).seconds or 0 for place in one.turn]
    assert one.cost.syncs == 4 and one.cost.seconds == pytest.approx(sum(seconds)) and one.cost.least
    assert one.rate is None and "take turns" in one.no_rate
    data = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert data["turn"] == {"graphs": [0, 1, 1, 3], "syncs": 4, "seconds": one.cost.seconds, "least": True}
    assert data["samples_per_second"] is None


@pytest.mark.parametrize(("rows", "samples"), [((32, 32, 32, 32), 128), ((None, 32, 32, 32), 96), ((None,) * 4, None)])
def test_samples_of_a_full_turn(rows: tuple[int | None, ...], samples: int | None) -> None:
    """A graph that is given nothing by the host has no samples of its own."""
    one = accumulating(rows)
    assert one.samples == samples and one.cost.seconds is not None
    if samples is None:
        assert one.rate is None and "take turns" in one.no_rate
    else:
        assert one.rate is not None and one.rate.batch == samples * 8
        assert one.rate.every == pytest.approx(samples * 8 / one.cost.seconds)


def test_a_turn_of_which_one_graph_has_no_estimate_has_none() -> None:
    one = accumulating()
    unknown = replace(one.compiled[1], flops=None, hbm_bytes=None, memory=None, multiplications=None)
    assert replace(one, compiled=(one.compiled[0], unknown, *one.compiled[2:])).cost.seconds is None


@pytest.mark.parametrize(
    ("sequence", "settled", "steady", "turn"),
    [
        ((0, 1, 1), True, {1}, (1,)),
        ((), True, {1}, (1,)),  # a framework that tells one graph
        ((0, 1, 0, 1, 0, 1), True, {0, 1}, (0, 1)),  # two optimizers
        ((0, 1, 1), True, {0, 1}, ()),  # not all that are steady were seen again
        ((), True, {0, 1}, ()),
        ((0, 1), False, {1}, ()),
        ((0, 1), True, {1}, ()),
    ],
)
def test_turns(sequence: tuple[int, ...], settled: bool, steady: set[int], turn: tuple[int, ...]) -> None:
    graphs = tuple(replace(graph(nth), steady=nth in steady) for nth in (0, 1))
    one = result("v5e-8", traced(graphs=graphs, settled=settled, syncs=max(len(sequence), 2), sequence=sequence))
    assert one.turn == turn
    assert (one.rate is not None) is (len(turn) == 1) is (one.no_rate == "")


# -- gradients that are kept -----------------------------------------------------------------------------------------


def test_gradients_that_are_kept_are_seen() -> None:
    """Outputs of parameters' shapes that no argument's memory takes."""
    kept = Buffer(22 * MIB, 22 * MIB, "f32[2048,784]", "{1,0:T(8,128)}", "output")
    memory = HbmUsage(131 * MIB, 16 * GIB, 67 * MIB, 111 * MIB, 67 * MIB, 17 * MIB, 3 * MIB)
    one = graph(1, parameters=("f32[2048,784] 0.weight", "f32[32,784] x"), donors=(0,))
    known = compiled(memory=memory, buffers=(kept, replace(kept, kind="temporary", shape="f32[9]")))
    assert retained_gradients(one, known) == 44 * MIB
    assert retained_gradients(one, replace(known, buffers=(replace(kept, shape="f32[32,784]"),))) is None
    assert retained_gradients(one, replace(known, buffers=())) is None
    assert retained_gradients(one, replace(known, memory=replace(memory, aliased=110 * MIB))) is None
    assert retained_gradients(one, replace(known, memory=HbmUsage(131 * MIB, 16 * GIB))) is None


def test_a_trace_without_the_graphs_of_its_first_steps() -> None:
    found = replace(traced(), sequence=(0, 1, 1), rows=(8, 32))
    later = found.later
    assert (later.graphs, later.sequence, later.rows) == ((found.graphs[1],), (0, 0), (32,))
    assert replace(found, settled=False).later.graphs == found.graphs
