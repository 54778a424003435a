"""A profile: what costs add up to, by kind, module and line; and its files for other tools."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.panel.preflights import profiled
from tpu_magics.backends.hlo.proto import _fields, _number
from tpu_magics.backends.lowered import EAGER, LoweredGraph, Operations, OpScope, SourceLine
from tpu_magics.errors import TpuMagicsError
from tpu_magics.panel.preflight_profile import unknown
from tpu_magics.preflight.analysis.op_costs import _group
from tpu_magics.preflight.compilation import _of_operations, _with_locations
from tpu_magics.preflight.compile_result import CollectiveTransfer, CompileResult, HeldMemory, OpCost
from tpu_magics.preflight.profile import OUTSIDE, ModuleTree, Profile, profile
from tpu_magics.preflight.report import Preflight
from tpu_magics.preflight.roofline import NO_PROGRAM
from tpu_magics.preflight.targets import parse


@pytest.fixture
def found() -> Preflight:
    return profiled()


@pytest.fixture
def step(found: Preflight) -> Profile:
    return found.results[0].profile


def test_every_grouping_has_all_of_the_time(step: Profile) -> None:
    whole = pytest.approx(sum(one.cost.cycles or 0 for one in step.ops) / 1.5e9)
    assert step.seconds == whole
    for groups in (step.kinds, step.phases, step.lines):
        assert sum(group.seconds for group in groups) == whole
        assert sum(len(group.ops) for group in groups) == len(step.ops)
    assert sum(tree.group.seconds for tree in step.modules) == whole


def test_modules_are_a_tree_and_layers_are_in_their_order(step: Profile) -> None:
    encoder = next(tree for tree in step.modules if tree.path == "encoder")
    [layers] = encoder.inside
    assert [tree.path for tree in layers.inside] == ["encoder.layer.0", "encoder.layer.1", "encoder.layer.10"]
    assert {tree.path for tree in step.modules} >= {"encoder", "AdamW", OUTSIDE}

    def check(tree: ModuleTree) -> None:
        assert sum(each.group.seconds for each in tree.inside) <= tree.group.seconds * 1.0001
        for each in tree.inside:
            check(each)

    check(encoder)


def test_what_is_not_estimated_counts_with_its_bound_and_apart(step: Profile) -> None:
    scatter = next(group for group in step.kinds if group.name == "scatter")
    assert (scatter.seconds, len(scatter.unknown)) == (0, 1)
    assert scatter.unknown_least == pytest.approx(819e6 / 819e9)
    prefetch = next(group for group in step.kinds if group.name == "prefetch")
    assert not prefetch.unknown and prefetch.weight == 0


def test_the_bound_is_that_of_the_slowest_kind_of_work(step: Profile) -> None:
    [product] = [one for one in step.ops if one.cost.kind == "matmul" and one.cost.flops > 1e12]
    assert (product.bound, product.least) == ("compute", pytest.approx(1.97e12 / 197e12))
    [sum_] = [one for one in step.ops if one.cost.transfer is not None]
    assert (sum_.bound, sum_.least) == ("transfers", pytest.approx(2e9 / 200e9))
    assert step.least == pytest.approx(max(1.97e12 / 197e12, sum(one.memory for one in step.ops), 2e9 / 200e9), rel=0.1)


def test_memory_is_that_of_modules_also_of_parameters_and_their_state(step: Profile) -> None:
    held = {group.name: group.kinds for group in step.memory_by_module}
    assert held["encoder.layer.0.dense"] == {"argument": 3_000}
    assert held["encoder.layer.0"] == {"temporary": 500}


def test_without_estimates_the_rest_is_there_and_the_reason(found: Preflight) -> None:
    [one] = found.results
    bare = replace(one.steady, costs=tuple(replace(cost, cycles=None) for cost in one.steady.costs))
    step = replace(one, compiled=(one.compiled[0], bare)).profile
    assert step.seconds is None and "0.0.52" in step.missing
    assert step.least == one.profile.least
    assert step.largest(1)[0].least == max(each.least for each in step.ops)


def test_operations_outside_of_a_program_are_part_of_it(found: Preflight) -> None:
    one = found.results[0]
    graph = LoweredGraph(b"", EAGER, "h", operations=Operations(12, int(8.19e8), {"f32": 1e9}))
    assert graph.operations is not None
    eager = _of_operations(graph, graph.operations, one.target)
    alone, beside = (profile(results, one.target.chip) for results in ([eager], [one.steady, eager]))
    assert (alone.missing, len(alone.ops)) == (NO_PROGRAM, 1)
    assert alone.least == pytest.approx(1e-3)  # 819 MB at 819 GB/s
    assert (beside.missing, len(beside.ops)) == ("", len(one.profile.ops) + 1)
    assert "1 group of operations outside of torch.compile" in unknown(beside)


def test_a_chip_without_a_known_clock_is_told(found: Preflight) -> None:
    [one] = found.results
    target = replace(one.target, chip=replace(one.target.chip, clock=None))
    assert replace(one, target=target).profile.missing == "the clock of this chip is not known"


def test_operations_take_the_first_of_their_names_that_belongs_to_something() -> None:
    place = SourceLine("In [1]", 3, "loss.backward()")
    graph = LoweredGraph(b"", "hlo", "h", places={4: place}, scopes={4: OpScope("a.b", "backward")})
    cost = OpCost("fusion.1", "elementwise", 1, ops=("aten__add#3", "aten__mm#4", "aten__mul#9"))
    held = (HeldMemory(1, 1, "temporary", "aten__mm#4"), HeldMemory(1, 1, "argument", "exp_avg of a.b.weight"))
    found = _with_locations(CompileResult("t", "h", "fits", costs=(cost,), held=held), graph)
    assert (found.costs[0].op, found.costs[0].place) == ("aten__mm", place)
    assert found.costs[0].scope == found.held[0].scope == OpScope("a.b", "backward")
    assert found.held[1].op == "exp_avg of a.b.weight"


def test_a_copy_of_an_input_belongs_to_what_uses_it() -> None:
    """Without a user that belongs to something, it has the line that sent it."""
    sent, used = SourceLine("In [3]", 7, "x = x.to(device)"), SourceLine("In [3]", 8, "model(x)")
    graph = LoweredGraph(b"", "hlo", "h", places={1: sent, 2: used}, scopes={2: OpScope("stem", "forward")})
    copy = OpCost("copy.1", "copy", 1, ops=("xla__device_data#1", "aten__convolution#2"))
    alone = OpCost("copy.2", "copy", 1, ops=("xla__device_data#1",))
    found = _with_locations(CompileResult("t", "h", "fits", costs=(copy, alone)), graph)
    assert [(one.place, one.scope.module) for one in found.costs] == [(used, "stem"), (sent, "")]


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={}, to_apply=%add", list(range(8))),
        ("replica_groups={{0,2},{1,3}}", [0, 2]),
        ("replica_groups=[2,4]<=[8], x=1", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true", [0, 4]),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2)", [0, 1, 4, 5]),
        ("source_target_pairs={{0,1},{1,2}}", [0, 1]),
        ("replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}", list(range(8))),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", [0, 2, 4, 6]),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}", [0, 1]),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=2,'axis_2'=2] {'axis_0','axis_2'}", [0, 1, 4, 5]),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)2}", [0, 4]),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}", [0, 2]),
    ],
)
def test_the_devices_of_a_transfer(text: str, group: list[int]) -> None:
    assert _group(text, 8) == group


@pytest.mark.parametrize(
    ("mesh", "ranks", "group", "stride", "axes"),
    [
        ((("data", 4), ("model", 2)), 1, 4, 2, "data"),
        ((("data", 4), ("model", 2)), 1, 2, 1, "model"),
        ((("data", 4), ("model", 2)), 1, 2, -6, "data"),  # the last of a ring sends to the first
        ((("data", 4), ("model", 2)), 1, 8, 1, "data and model"),
        ((("data", 8), ("model", 1)), 1, 8, 1, "data"),
        ((("data", 4), ("model", 2)), 1, 2, 3, "data and model"),
        ((("", 4), ("", 2)), 1, 4, 2, "an axis of 4"),
        ((("data", 8), ("model", 1)), 1, 4, 2, "4 devices"),  # of another mesh
        ((("data", 4), ("model", 2)), 1, 4, 0, "4 devices"),
        ((), 8, 8, 1, "all ranks"),
        ((), 8, 2, 1, "2 ranks"),
    ],
)
def test_a_transfer_is_named_by_the_axes_that_it_runs_over(
    mesh: tuple[tuple[str, int], ...], ranks: int, group: int, stride: int, axes: str
) -> None:
    assert Profile(mesh=mesh, ranks=ranks).axes(CollectiveTransfer(group, stride, 1.0)) == axes


def test_a_transfer_takes_no_time_of_its_own_while_others_run() -> None:
    """2 GB take about 10 ms on the links of v5e."""
    chip = parse("v5e-8").chip
    assert chip.clock

    def step(meanwhile: float) -> Profile:
        transfer = CollectiveTransfer(8, 1, 2e9, meanwhile * chip.clock)
        costs = (OpCost("a", "collective", 1, transfer=transfer), OpCost("b", "matmul", 1, 1e6))
        done = OpCost("c", "collective", 1)
        return profile((CompileResult("t", "h", "fits", costs=(*costs, done)),), chip, LoweredGraph(b"", "hlo", "h"))

    alone, half, hidden = step(0.0), step(0.004), step(1.0)
    [sent] = alone.transfers
    assert (sent.bytes, sent.beside, half.transfers[0].beside) == (2e9, 0, 1)
    assert sent.least == sent.ops[0].transfer
    assert len(alone.whole.unknown) == 1, "its end is no transfer of its own"
    assert alone.whole.weight - half.whole.weight == pytest.approx(0.004)
    assert hidden.whole.weight == pytest.approx(1e6 / chip.clock)
    assert alone.least == half.least == hidden.least


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_trace_has_the_operations_in_their_order_and_the_modules_around_them(
    found: Preflight, step: Profile, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"step{ending}"
    found.export_profile(path)
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if ending.endswith(".gz") else data)
    slices = [one for one in trace["traceEvents"] if one["ph"] == "X"]
    ops = [one for one in slices if one["tid"] == 1]
    assert len(ops) == sum(bool(one.seconds) for one in step.ops)
    for one, after in pairwise(ops):
        assert one["ts"] + one["dur"] == pytest.approx(after["ts"])
    assert sum(one["dur"] for one in ops) == pytest.approx((step.seconds or 0) * 1e6)
    outer = Counter()  # type: Counter[str]
    for one in slices:
        outer[one["name"]] += one["dur"] if one["tid"] == 2 else 0
    assert outer["backward"] == pytest.approx(sum(g.seconds for g in step.phases if g.name == "backward") * 1e6)
    assert "nothing was measured" in trace["otherData"]["note"]


def message(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message: numbers and bytes."""
    found: dict[int, list[Any]] = {}
    for number, kind, _, at, end in _fields(data):
        found.setdefault(number, []).append(data[at:end] if kind == 2 else _number(data[at:end]))
    return found


def test_a_pprof_file_has_the_stacks_of_operations(found: Preflight, step: Profile, tmp_path: Path) -> None:
    """Read by the numbers of pprof's profile.proto."""
    path = tmp_path / "step.pb.gz"
    found.export_profile(path, "v5e-8")
    whole = message(gzip.decompress(path.read_bytes()))
    texts = [one.decode() for one in whole[6]]
    assert texts[0] == ""
    types = [message(one) for one in whole[1]]
    assert [texts[one[1][0]] for one in types] == ["estimate", "at_least", "hbm", "flops"]
    functions = {one[1][0]: one for one in map(message, whole[5])}
    locations = {one[1][0]: message(one[4][0]) for one in map(message, whole[4])}
    samples = [message(one) for one in whole[2]]
    assert len(samples) == len(step.ops)
    assert sum(one[2][0] for one in samples) == pytest.approx((step.seconds or 0) * 1e9, abs=len(samples))
    stacks = [[texts[functions[locations[at][1][0]][2][0]] for at in one[1]] for one in samples]
    assert [
        "matmul: aten__mm",
        "dense",
        "0",
        "layer",
        "encoder",
        "backward",
        "    loss = model(**batch).loss",
    ] in stacks
    files = {texts[functions[locations[one[1][0]][1][0]].get(4, [0])[0]] for one in samples}
    assert files == {"In [3]", ""}


@pytest.mark.parametrize("name", ["step.txt", "step", "missing/step.json"])
def test_files_that_cannot_be_are_refused(found: Preflight, tmp_path: Path, name: str) -> None:
    with pytest.raises(TpuMagicsError):
        found.export_profile(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_json_data_have_the_profile_and_not_all_operations(found: Preflight) -> None:
    data = json.loads(json.dumps(found.to_dict()))
    [one] = data["results"]
    assert one["profile"]["seconds"] == found.results[0].profile.seconds
    assert {group["name"] for group in one["profile"]["kinds"]} >= {"matmul", "scatter", "collective"}
    assert all("costs" not in graph for graph in one["graphs"])
