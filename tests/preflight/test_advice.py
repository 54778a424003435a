"""Variants of a step, and what `--advise` proposes and tries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.panel import preflights
from tests.panel.preflights import ATTENTION, GIB, STEP, result, traced
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.launch.options import ALL_DEVICES, Options
from tpu_magics.magics.preflight import preflight
from tpu_magics.preflight.advice import (
    PROPOSALS,
    WORTH,
    Proposal,
    Subject,
    _tried,
    attention_scores,
    subject_of,
    too_large,
)
from tpu_magics.preflight.compile_result import Buffer, HbmUsage, Multiplications, OpCost, OpScope
from tpu_magics.preflight.pipeline import TrainingCall
from tpu_magics.preflight.report import Variant, VariantResult
from tpu_magics.preflight.targets import parse
from tpu_magics.preflight.variants import Axis, compare, parse_mesh, require_meshes, variants

# -- what is compared -------------------------------------------------------------------------------------------------


def test_variants_are_all_combinations_in_the_order_of_their_names() -> None:
    found = variants([Axis.of("batch=32,64"), Axis.of("precision=fp32,bf16"), Axis.of("remat=on")])
    assert [one.label for one in found] == [
        "batch=32, precision=fp32, remat=on",
        "batch=32, precision=bf16, remat=on",
        "batch=64, precision=fp32, remat=on",
        "batch=64, precision=bf16, remat=on",
    ]
    assert found[1] == Variant(found[1].label, (("batch", 32),), "bf16", ("remat=on",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch", "Put the function and its arguments before --compare"),
        ("batch=", "whole numbers"),
        ("batch=1.5", "'1.5' cannot be read: the form is NAME=VALUE"),
        ("batch=-1", "-1"),
        ("precision=fp8", "'fp8' cannot be read: the values are fp32, bf16, bf16-downcast"),
        ("remat=yes", "the values are on, off"),
        ("a b=1", "whole numbers"),
    ],
)
def test_other_forms_are_refused(text: str, said: str) -> None:
    with pytest.raises(TpuMagicsError, match=r"--compare .* cannot be compared") as caught:
        Axis.of(text)
    assert said in str(caught.value)


def test_a_name_has_one_list_of_values() -> None:
    with pytest.raises(TpuMagicsError, match="--compare has batch twice"):
        variants([Axis.of("batch=1,2"), Axis.of("batch=3")])


def test_meshes_are_variants_with_the_others() -> None:
    found = variants([Axis.of("batch=32,64")], [parse_mesh("data=8"), parse_mesh("data=4,model=2")])
    assert [one.label for one in found] == [
        "data=8, batch=32",
        "data=8, batch=64",
        "data=4,model=2, batch=32",
        "data=4,model=2, batch=64",
    ]
    assert found[3] == Variant(found[3].label, (("batch", 64),), "", (), (("data", 4), ("model", 2)))
    assert [one.label for one in variants([], [parse_mesh("fsdp=8")])] == ["fsdp=8"]


@pytest.mark.parametrize(
    "text", ["data", "data=", "data=0", "data=-1", "data=2,data=4", "rows=8", "data=8,", "", "data=x"]
)
def test_other_meshes_are_refused(text: str) -> None:
    with pytest.raises(TpuMagicsError, match="is no mesh") as caught:
        parse_mesh(text)
    assert "the axes are data, fsdp, model" in str(caught.value)


def test_a_mesh_needs_the_devices_of_a_target() -> None:
    targets = [parse("v5e-8"), parse("v5p-16")]
    require_meshes([parse_mesh("data=4,model=2")], targets)
    with pytest.raises(TpuMagicsError, match="--mesh data=4 has 4 devices") as caught:
        require_meshes([parse_mesh("data=8"), parse_mesh("data=4")], targets)
    assert "v5litepod-8 has 8, v5p-16 has 8" in str(caught.value)
    with pytest.raises(TpuMagicsError, match=r"No mesh suits v5litepod-4") as caught:
        require_meshes([parse_mesh("data=8")], [*targets, parse("v5e-4")])
    assert "--mesh data=4" in str(caught.value)


def test_a_mesh_is_compiled_for_the_targets_that_have_its_devices() -> None:
    class FakePipeline:
        def __init__(self, call: TrainingCall, options: Options) -> None:
            self.options, self.changes = options, call.changes
            self.callbacks = type("Callbacks", (), {"line": staticmethod(lambda _line: None)})

        def result(self, target: Any, later: bool) -> Any:
            return target.name, self.options.spmd, self.options.processes, self.changes

    wanted = variants([], [parse_mesh("data=8"), parse_mesh("data=4")])
    targets = [parse("v5e-8"), parse("v5e-4")]
    call = TrainingCall(lambda: None, (), {}, ("remat=on",))
    found = compare(call, Options(processes=2), wanted, targets, {}, FakePipeline)  # type: ignore
    assert [one.results for one in found] == [
        (("v5litepod-8", ALL_DEVICES, None, ("remat=on", "mesh=data:8")),),
        (("v5litepod-4", ALL_DEVICES, None, ("remat=on", "mesh=data:4")),),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mesh": ("data=3",)}, "--mesh data=3 has 3 devices"),
        ({"mesh": "data=3"}, "--mesh data=3 has 3 devices"),
        ({"mesh": "data=1", "processes": 1}, "-n 1 and --mesh do not go together"),
        ({"mesh": ("train",)}, "Put the function and its arguments before --mesh"),
        ({"compare": ("bacth=8,16",)}, "--compare bacth: there is no such name"),
        ({"advise": True, "fit": "batch"}, "--fit and --advise do not go together"),
    ],
)
@pytest.mark.usefixtures("fresh_session", "tpu_compiler")
def test_what_cannot_be_is_refused_before_anything_compiles(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TpuMagicsError, match=said):
        preflight(wasteful, target="v5e-1", plain=True, **options)


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(TpuMagicsError, match="--compare has 25 combinations"):
        variants([Axis.of("batch=1,2,3,4,5"), Axis.of("length=1,2,3,4,5")])


def test_a_variant_with_which_the_function_does_not_run_has_its_error() -> None:
    class FakePipeline:
        """Of a function that takes no batch of 64."""

        def __init__(self, call: TrainingCall) -> None:
            self.call = call
            self.callbacks = type("Callbacks", (), {"line": staticmethod(lambda _line: None)})

        def result(self, _target: Any, later: bool) -> Any:
            if self.call.kwargs.get("batch", self.call.args[:1]) in (64, (64,)):
                raise TpuMagicsError("the function fails with 64", "", "")
            return preflights.result("v5e-8")

    call = TrainingCall(lambda batch: batch, (8,), {})
    wanted = variants([Axis.of("batch=32,64")])
    found = list(compare(call, Options(), wanted, ["v5e-8"], {}, lambda changed, _: FakePipeline(changed)))  # type: ignore
    assert [(bool(one.results), one.error) for one in found] == [(True, ""), (False, "the function fails with 64")]


def test_an_interrupt_ends_all_variants() -> None:
    class FakePipeline:
        def __init__(self, *_: Any) -> None:
            self.callbacks = type("Callbacks", (), {"line": staticmethod(lambda _line: None)})

        def result(self, _target: Any, later: bool) -> Any:
            raise TrainingInterrupted("stopped", "", "")

    wanted, call = variants([Axis.of("batch=32,64")]), TrainingCall(lambda batch: batch, (8,), {})
    with pytest.raises(KeyboardInterrupt):
        list(compare(call, Options(), wanted, ["v5e-8"], {}, FakePipeline))  # type: ignore


# -- what is proposed -------------------------------------------------------------------------------------------------


def subject(numbers: dict[str, int] | None = None, **facts: Any) -> Subject:
    trace = facts.pop("trace", traced(precision=""))
    return Subject(result("v5e-8", trace, **{"costs": preflights.costs(), **facts}), numbers or {})


def proposed(about: Subject) -> list[Proposal]:
    return [one for propose in PROPOSALS for one in propose(about)]


def test_a_tuned_step_gets_no_proposal() -> None:
    memory = HbmUsage(int(11 * GIB), int(15.75 * GIB), 1, 1, 1, 1, 1)
    assert proposed(subject({"batch": 32}, memory=memory)) == []


def test_f32_is_proposed_as_bf16_unless_it_was_asked_for() -> None:
    wide = {"multiplications": Multiplications({"f32": 2e12}, {"f32": 90})}
    assert [one.variant.precision for one in proposed(subject(**wide))] == ["bf16"]
    assert not proposed(subject(**wide, trace=traced(precision="bf16-downcast")))


def test_an_island_of_f32_is_named_with_its_module_and_line() -> None:
    costs = (*preflights.costs(), _matmul("decoder", 3_000_000, dtype="f32"))
    [found] = proposed(subject(costs=costs))
    assert found.variant.changes == ("bf16=decoder@In [3]:21",)
    assert (found.place, "decoder" in found.what) == (ATTENTION, True)


def _matmul(module: str, cycles: float, **facts: Any) -> OpCost:
    return OpCost("fusion.99", "matmul", 1, cycles, place=ATTENTION, scope=OpScope(module, "forward"), **facts)


def test_a_vocabulary_that_fills_no_tile_is_proposed_padded() -> None:
    shape = "bf16[4096,768] x bf16[768,30522] -> bf16[4096,30522]"
    trace = traced(precision="")
    names = ("f32[30522,768] embeddings.weight", "f32[768,768] dense.weight", "f32[500,768] x", "f32[100] bias")
    graphs = tuple(replace(one, parameters=names, donors=(0, 1, 3)) for one in trace.graphs)
    costs = (*preflights.costs(), _matmul("head", 3_000_000, shape=shape))
    [found] = proposed(subject(costs=costs, trace=replace(trace, graphs=graphs)))
    assert found.variant.changes == ("pad=30522:30592",)
    assert "embeddings.weight" in found.what


def _trained(*parameters: str) -> Any:
    """A trace of a step that changes these."""
    found = traced(batch=8, precision="")
    donors = tuple(range(len(parameters)))
    graphs = tuple(replace(one, parameters=parameters, donors=donors) for one in found.graphs)
    return replace(found, graphs=graphs)


def test_sizes_of_fused_projections_are_padded_with_what_they_are_of() -> None:
    costs = (*preflights.costs(), _matmul("a", 3_000_000, shape="bf16[8,480] x bf16[480,1440] -> bf16[8,1440]"))
    [found] = proposed(subject(costs=costs, trace=_trained("f32[480,480] out.weight", "f32[1440,480] qkv.weight")))
    assert found.variant.changes == ("pad=480:512", "pad=1440:1536")


def test_a_length_is_proposed_by_its_name() -> None:
    costs = (*preflights.costs(), _matmul("a", 3_000_000, shape="bf16[8,520,256] x bf16[256,256] -> bf16[8,520,256]"))
    about = subject({"length": 520, "width": 256, "steps": 5}, costs=costs, trace=_trained("f32[256,256] a.weight"))
    found = proposed(about)
    assert [(one.variant.sizes, round(one.left_out, 3)) for one in found] == [
        ((("length", 640),), 0.0),
        ((("length", 512),), 0.015),
    ]


SCORES = "bf16[96,1024,64] x bf16[96,64,1024] -> bf16[96,1024,1024]"


def test_scores_of_attention_are_known_by_their_shapes() -> None:
    def scores(*shapes: str) -> tuple[int, int] | None:
        costs = (*preflights.costs(), *(_matmul("a", 3_000_000, shape=one) for one in shapes))
        found = attention_scores(subject(costs=costs, trace=_trained()))
        return (found.heads, found.size) if found is not None else None

    assert scores(SCORES) == scores(SCORES.replace("[96,64,1024]", "[96,1024,64]")) == (12, 64)
    assert scores("bf16[8,12,64,512] x bf16[8,12,512,64] -> bf16[8,12,512,512]") == (12, 64)
    assert scores("bf16[8,1024,768] x bf16[768,3072] -> bf16[8,1024,3072]") is None
    assert scores("bf16[96,1024,1024] x bf16[96,1024,64] -> bf16[96,1024,64]") is None


def test_small_heads_are_proposed_as_fewer_and_scores_in_memory_with_the_kernel() -> None:
    costs = (*preflights.costs(), _matmul("a", 3_000_000, shape=SCORES))
    buffers = (Buffer(2**29, 2**29, "bf16[96,1024,1024]", "{2,1,0}", "temporary"),)
    trace = _trained("f32[768,768] out.weight")
    assert [one.variant.changes for one in proposed(subject(costs=costs, trace=trace, buffers=buffers))] == [
        ("heads=12x64:6x128",),
        ("flash=on",),
    ]
    unaligned = _matmul("a", 3_000_000, shape="bf16[48,512,80] x bf16[48,80,512] -> bf16[48,512,512]")
    weights = _trained("f32[480,480] out.weight", "f32[1440,480] qkv.weight")
    every = proposed(subject(costs=(*preflights.costs(), unaligned), trace=weights))
    assert [one.variant.changes for one in every] == [("pad=480:512", "pad=1440:1536", "heads=6x80:4x128")]


def test_copies_of_weights_are_proposed_as_another_way_to_store_them() -> None:
    copies = [
        OpCost(f"copy.{nth}", "copy", 1, 1_000_000, shape=f"f32[512,256,3,3]{{{order}:T(8,128)}}", place=STEP)
        for nth, order in enumerate(("0,1,3,2", "1,0,3,2", "1,0,3,2"))
    ]
    use = _matmul("c", 1.0, shape="bf16[64,256,7,7] x bf16[512,256,3,3] -> bf16[64,512,7,7]")
    trace = _trained("f32[512,256,3,3] 0.weight", "f32[512,256,3,3] exp_avg of 0.weight")
    [found] = proposed(subject(costs=(*preflights.costs(), *copies, use), trace=trace))
    assert found.variant.changes == ("transpose=512x256x3x3:0,1",)
    assert "(256, 512, 3, 3)" in found.todo and found.place == ATTENTION
    assert not proposed(subject(costs=(*preflights.costs(), *copies[1:]), trace=trace))


def test_the_time_of_more_kernels_is_not_known() -> None:
    before = result("v5e-8", costs=preflights.costs())
    costs = (*preflights.costs(), OpCost("custom-call.7", "kernel", 3))
    proposal = Proposal("flash attention", "b", Variant("v"), about_memory=True)
    one = _tried(proposal, before, VariantResult(Variant("v"), (result("v5e-8", costs=costs, needed=2 * GIB),)))
    assert one.time_gain is None and one.worth and (one.memory_gain or 0) > WORTH


def test_what_is_too_large_is_tried_with_what_needs_less() -> None:
    available = int(15.75 * GIB)
    memory = HbmUsage(2 * available, available)
    about = subject({"batch": 32}, memory=memory, status="too-large", costs=(), needed=2.0 * available)
    assert [one.variant.label for one in too_large(about)] == [
        *("precision=bf16", "remat=on", "flash attention", "batch = 16"),
    ]


def test_a_change_that_leaves_the_graph_as_it_was_is_said_to_do_nothing() -> None:
    before = result("v5e-8", costs=preflights.costs())
    proposal = Proposal("gradient checkpointing", "b", Variant("v", changes=("remat=on",)), about_memory=True)
    tried = _tried(proposal, before, VariantResult(proposal.variant, (before,)))
    assert (tried.after, tried.error, tried.worth) == (None, "it changes nothing in this step", False)


@pytest.mark.parametrize(
    ("free", "phase", "changes"),
    [(0.05, "forward", ("remat=on",)), (0.3, "recompute", ("remat=off",)), (0.3, "forward", ())],
)
def test_gradient_checkpointing_where_memory_asks_for_it(free: float, phase: str, changes: tuple[str, ...]) -> None:
    available = int(15.75 * GIB)
    memory = HbmUsage(int(available * (1 - free)), available, 1, 1, 1, 1, 1)
    costs = (*preflights.costs(), replace(_matmul("encoder", 9.0), scope=OpScope("encoder", phase)))
    found = proposed(subject(costs=costs, memory=memory))
    assert tuple(change for one in found for change in one.variant.changes) == changes


def test_a_batch_is_proposed_by_the_one_name_that_has_it() -> None:
    trace = traced(batch=30, precision="")
    sizes = [one.variant.sizes for one in proposed(subject({"batch": 30, "steps": 5}, trace=trace))]
    assert sizes == [(("batch", 32),), (("batch", 60),)]
    assert not proposed(subject({"batch": 30, "rows": 30}, trace=trace))
    assert not proposed(subject({"steps": 5}, trace=trace))


rows_of_a_batch, unused = 30, 30


def test_names_are_those_of_arguments_and_those_that_the_function_reads() -> None:
    def train(lr: float, steps: int = 5, fast: bool = True) -> object:
        return rows_of_a_batch, notebooks_own, lr  # type: ignore[name-defined]  # noqa: F821

    call = TrainingCall(train, (0.1,), {})
    found = subject_of(result("v5e-8"), call, {"notebooks_own": 64, "other": 64})
    assert found.numbers == {"rows_of_a_batch": 30, "notebooks_own": 64, "steps": 5}


def test_only_what_gains_is_worth_it() -> None:
    before = result("v5e-8", costs=preflights.costs())

    def after(factor: float, **facts: Any) -> VariantResult:
        costs = tuple(replace(one, cycles=one.cycles and factor * one.cycles) for one in preflights.costs())
        return VariantResult(Variant("v"), (result("v5e-8", costs=costs, **facts),))

    time, memory = Proposal("a", "b", Variant("v")), Proposal("a", "b", Variant("v"), about_memory=True)
    assert _tried(time, before, after(0.9)).worth and not _tried(time, before, after(0.99)).worth
    assert not _tried(memory, before, after(1.2)).worth and _tried(memory, before, after(1.2, needed=2 * GIB)).worth
    assert _tried(time, before, after(1.0, needed=2 * GIB)).worth, "memory, at the same time"
    assert not _tried(time, before, after(1.02, needed=2 * GIB)).worth
    assert [_tried(replace(time, left_out=part), before, after(0.7)).worth for part in (0.01, 0.5)] == [True, False]
    assert not _tried(time, before, after(0.5, status="too-large")).worth
    large = result("v5e-8", costs=preflights.costs(), status="too-large")
    assert _tried(memory, large, after(1.5)).worth
    assert not _tried(time, before, VariantResult(Variant("v"), error="it fails")).worth


# -- all of it --------------------------------------------------------------------------------------------------------


def wasteful(batch: int = 500, width: int = 1000) -> None:
    """f32, and sizes that fill no tile."""
    import torch
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(2))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.zeros(batch, width).to(device)).mean().backward()
        optimizer.step()
        torch_xla.sync()


@pytest.mark.process
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("own_cache")
def test_variants_and_advice_of_a_real_step() -> None:
    found = preflight(wasteful, target="v5e-1", compare=("batch=500,4096", "precision=fp32"), advise=True, plain=True)
    small, large = (one.results[0].time_for_a_sample for one in found.compared)
    assert small and large and large < small
    tried = {one.what: one for one in found.advice.tried}
    assert {"batch = 504", "batch = 1000"} <= set(tried)
    assert tried["batch = 1000"].worth and (tried["batch = 1000"].time_gain or 0) > 0.03
    text = str(found)
    assert "Variants" in text and "batch=4096, precision=fp32" in text and "What to change" in text
    assert found.to_dict()["compared"][1]["results"][0]["samples"] == 4096


def looks_up(spec: tuple[Any, ...] = ("data", None)) -> None:
    """A table of embeddings with rows on all devices."""
    import torch
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.get_global_mesh()
    model = torch.nn.Sequential(torch.nn.Embedding(16384, 512), torch.nn.Linear(512, 512)).to(device)
    xs.mark_sharding(model[0].weight, mesh, spec)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        ids = torch.zeros(256, 64, dtype=torch.long).to(device)
        xs.mark_sharding(ids, mesh, ("data", None))
        with torch.autocast("xla", dtype=torch.bfloat16):
            loss = model(ids).float().mean()  # here the table is read
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


@pytest.mark.process
@pytest.mark.timeout(580)
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("spec", "gains"), [(("data", None), True), ((None, "data"), False)])
def test_an_embedding_that_is_sharded_over_its_rows(spec: tuple[Any, ...], gains: bool) -> None:
    found = preflight(looks_up, spec, target="v5e-8", spmd=True, advise=True, plain=True)
    tried = {one.what: one for one in found.advice.tried}
    one = tried.get("0.weight sharded over its vectors, not its rows")
    if gains:
        assert one is not None and one.worth and (one.time_gain or 0) > 0.05
        assert one.place is not None and one.place.code.endswith("# here the table is read")
        assert [group.name for group in found.results[0].profile.transfers] == ["data"]
    else:
        assert one is None or one.error == "it changes nothing in this step"
