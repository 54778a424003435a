"""Preflights as a compiler would give them, for tests of the verdict, of the report and of how both look.

The figures of `bert` are of the size that libtpu 0.0.52 reports for a training step of BERT-base; the others are made
up.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from tpu_magics.backends.lowered import HostRead, LoweredGraph, SourceLine, TraceResult, UnsupportedOp
from tpu_magics.preflight.compile_result import (
    Buffer,
    CollectiveTransfer,
    CompileResult,
    HbmUsage,
    HeldMemory,
    Multiplications,
    OpCost,
    OpScope,
    PaddedDimension,
    TilePadding,
)
from tpu_magics.preflight.fit import FitPoint, FitResult
from tpu_magics.preflight.report import AdviceResult, Preflight, TargetResult, TriedChange, Variant, VariantResult
from tpu_magics.preflight.targets import parse

GIB, MIB = 2**30, 2**20
ATTENTION = SourceLine("In [3]", 21, "    loss = model(**batch).loss")
STEP = SourceLine("In [3]", 24, "    optimizer.step()")
READ = SourceLine("In [3]", 27, "    losses.append(loss.item())")
VERSIONS = {"jaxlib": "0.10.2", "libtpu": "0.0.52"}


def graph(nth: int, **others: Any) -> LoweredGraph:
    return LoweredGraph(b"module", "hlo", f"hash{nth}", nth=nth, steady=nth > 0, site=replace(STEP, line=25), **others)


def traced(**others: Any) -> TraceResult:
    """Of a step that settles with its second sync."""
    known = {"graphs": (graph(0), graph(1)), "syncs": 3, "settled": True, "seconds": 9.1, "batch": 32}
    return TraceResult(**{**known, "precision": "bf16", **others})


def buffers() -> tuple[Buffer, ...]:
    tiles = "{3,2,1,0:T(8,128)(2,1)}"
    found = [Buffer(144 * MIB, 144 * MIB, "bf16[32,12,384,512]", tiles, "temporary", "aten__softmax", ATTENTION)]
    found += [Buffer(89 * MIB, 89 * MIB, "f32[30522,768]", "{1,0:T(8,128)}", "argument", "", STEP)]
    found += [Buffer(64 * MIB, 50 * MIB, "bf16[32,128,100]", tiles, "temporary", "aten__mm", ATTENTION)]
    return tuple(found)


def compiled(name: str = "v5litepod-8", nth: int = 1, needed: float = 4.3 * GIB, **others: Any) -> CompileResult:
    """A step of BERT-base with AdamW, batch 32 x 128, in bf16."""
    code, arguments, outputs = 90 * MIB, int(1.24 * GIB), int(1.22 * GIB)
    aliased = outputs - 20 * MIB if nth else 0
    rest = int(needed) - arguments - (outputs - aliased) - code
    known = {
        "target": name,
        "graph": f"hash{nth}",
        "status": "fits",
        "seconds": 31.4,
        "memory": HbmUsage(int(needed), parse(name).chip.available, arguments, outputs, aliased, rest, code),
        "flops": 2.16e12,
        "bytes_accessed": 5.2e10,
        "hbm_bytes": 2.1e10,
        "multiplications": Multiplications({"bf16": 2.09e12, "f32": 2e10}, {"bf16": 98, "f32": 4}),
        "padding": TilePadding(int(4.2 * GIB), int(4.1 * GIB), (PaddedDimension(2, 128, 90 * MIB, 6, "f32[768,2]"),)),
        "buffers": buffers(),
        "versions": VERSIONS,
        "peak": int(2.4 * GIB),
    }
    return CompileResult(**{**known, **others})


def result(name: str = "v5e-8", trace: TraceResult | None = None, **others: Any) -> TargetResult:
    """With as many replicas as the target has ranks, or `ranks`; one where the trace is split or does not say."""
    target, trace = parse(name), trace or traced()
    alone = trace.graphs[0].partitions > 1 or not trace.ranks_known
    ranks = others.pop("ranks", target.ranks)
    many = 1 if alone else ranks
    trace = replace(trace, graphs=tuple(replace(one, replicas=many) for one in trace.graphs))
    first = {key: value for key, value in others.items() if key not in ("memory", "padding")}
    made = [compiled(target.name, one.nth, **(others if one.steady else first)) for one in trace.graphs]
    return TargetResult(target, trace, tuple(made))


def bert() -> Preflight:
    """It fits both."""
    v6e = result("v6e-8", seconds=38.0, kept=True)
    return Preflight("train", (result("v5e-8"), v6e))


def too_large() -> Preflight:
    """Batch 512 x 512 in f32."""
    found = []
    for name in ("v5e-8", "v6e-8"):
        target = parse(name)
        memory = HbmUsage(int(184.1 * GIB), target.chip.available)
        nothing = {"flops": None, "bytes_accessed": None, "hbm_bytes": None, "multiplications": None, "padding": None}
        found.append(
            result(
                name,
                traced(batch=512, precision="fp32", reads=(HostRead(READ, "loss.item()", 3),)),
                **{**nothing, "memory": memory, "status": "too-large", "seconds": 4.2, "needed": 184.1 * GIB},
                error="RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM",
            )
        )
    whole = tuple(
        replace(one, compiled=tuple(replace(each, memory=one.compiled[-1].memory) for each in one.compiled))
        for one in found
    )
    return Preflight("train", whole)


def tiny() -> Preflight:
    """A small MLP on batch 8."""
    small = Multiplications({"f32": 2.4e6}, {"f32": 6})
    memory = HbmUsage(3 * MIB, parse("v5e-8").chip.available, MIB, MIB, MIB, MIB, MIB)
    facts = {"flops": 2.8e6, "bytes_accessed": 4e6, "hbm_bytes": 1.9e6, "multiplications": small, "memory": memory}
    lost = TilePadding(3 * MIB, 2 * MIB, (PaddedDimension(100, 128, MIB, 8, "f32[64,100]", "hidden.weight"),))
    one = result("v5e-8", traced(batch=8, precision="fp32"), **facts, padding=lost)
    return Preflight("train", (replace(one, compiled=tuple(replace(each, memory=memory) for each in one.compiled)),))


def custom() -> Preflight:
    """An op that runs on the host, a value read in each step, and a graph that changes."""
    op = UnsupportedOp(
        "aten::nonzero", "the number of its results depends on values, so the host runs it.", "host", ATTENTION, 3
    )
    text = "input_ids now int64[32,129], before int64[32,128]"
    trace = traced(
        graphs=tuple(replace(graph(nth), steady=nth == 4) for nth in range(5)),
        refused=(op,),
        reads=(HostRead(READ, "loss.item()", 5),),
        settled=False,
        syncs=5,
        changes=(("input-shape", text), ("input-shape", "input_ids now int64[32,131], before int64[32,129]")),
        notes=("The batch was made of zeros.",),
    )
    return Preflight("train", (result("v5e-8", trace),))


def refused() -> Preflight:
    error = "INTERNAL: Mosaic failed to compile TPU kernel: custom call 'my_kernel' is not known"
    one = UnsupportedOp("my_kernel", "the TPU does not know this custom call.", "compiler", ATTENTION)
    nothing = {"flops": None, "bytes_accessed": None, "hbm_bytes": None, "multiplications": None, "padding": None}
    found = result("v5e-8", status="refused", refused=(one,), error=error, memory=None, buffers=(), **nothing)
    none = tuple(replace(each, memory=None) for each in found.compiled)
    died = tuple(
        replace(each, status="failed", error="The compile process was stopped at 12 GiB of host memory.")
        for each in none
    )
    return Preflight("train", (replace(found, compiled=none), TargetResult(parse("v4-8"), result("v4-8").traced, died)))


def fitted() -> Preflight:
    """The search on both."""
    found = bert()
    fits = [_search(one, growth) for one, growth in zip(found.results, (0.0755, 0.0762), strict=True)]
    return replace(found, fit=tuple(fits))


def _search(one: TargetResult, growth: float) -> FitResult:
    available = one.target.chip.available or 0
    largest = int((available / GIB - 1.9) / growth)
    nice = largest // 8 * 8
    tried = (32, 512, 208, nice, nice + 8, largest, largest + 1)
    points = [_point(size, int((1.9 + growth * size) * GIB), available) for size in dict.fromkeys(tried)]
    note = f"batch_size = {largest} fits, {largest + 1} does not: both were compiled."
    return FitResult(one.name, "batch_size", largest, nice, tuple(points), one.target.ranks, (note,))


def _point(size: int, needed: int, available: int) -> FitPoint:
    status = "fits" if needed <= available else "too-large"
    return FitPoint(size, status, needed, available, 28.0 if status == "fits" else 3.9, "", f"hash-{size}")


# -- a profile --------------------------------------------------------------------------------------------------------


def costs() -> tuple[OpCost, ...]:
    """Of a step of three layers, in the order in which they run."""

    def cost(kind: str, module: str, phase: str, cycles: float | None, **others: Any) -> OpCost:
        place = STEP if phase == "optimizer" else ATTENTION if phase else None
        known = {"op": "aten__mm", "place": place, "scope": OpScope(module, phase), "shape": "bf16[32,128,768]"}
        return OpCost(f"fusion.{next(numbers)}", kind, 1, cycles, **{**known, **others})

    numbers = itertools.count()
    found = [cost("prefetch", "", "", None, bytes=8.19e6), cost("gather", "embeddings", "forward", None, bytes=1e6)]
    layers = [f"encoder.layer.{number}.dense" for number in (0, 1, 10)]
    found += [cost("matmul", layer, "forward", 300_000, flops=2e10, dtype="bf16") for layer in layers]
    found += [cost("elementwise", layer.removesuffix(".dense"), "forward", 150_000) for layer in layers]
    found += [cost("reduce", "", "forward", 3_000), cost("copy", layers[0], "backward", 400_000, padded=128, plain=100)]
    found += [cost("matmul", layer, "backward", 600_000, flops=4e10) for layer in reversed(layers)]
    found += [cost("matmul", layers[0], "backward", 18_000_000, flops=1.97e12, bytes=1e6)]
    found += [cost("scatter", "embeddings", "backward", None, bytes=819e6, op="aten__index_put")]
    found += [cost("collective", "AdamW", "optimizer", None, transfer=CollectiveTransfer(8, 1, 2e9))]
    found += [cost("elementwise", "AdamW", "optimizer", 1_500_000, bytes=8e8), cost("elementwise", "", "", 700)]
    return tuple(found)


def graph_network() -> Preflight:
    """Its matrix multiplications have all of the FLOPs, and its scatters most of the bytes."""
    found = OpCost("fusion.1", "matmul", 1, 300_000, flops=2e10, shape="f32[8,8]", padded=4096)
    far = {"bytes": 8e8, "shape": "f32[400000,128]{1,0:T(8,128)}", "padded": 204_800_000, "place": ATTENTION}
    irregular = [
        OpCost(f"fusion.{n}", kind, 1, None, **far) for n, kind in enumerate(("scatter", "scatter", "gather"), 2)
    ]
    return Preflight("train", (result("v5e-8", costs=(found, *irregular)),))


def profiled() -> Preflight:
    """With a profile that is shown."""
    held = (
        HeldMemory(1_000, 1, "argument", "encoder.layer.0.dense.weight"),
        HeldMemory(2_000, 2, "argument", "exp_avg of encoder.layer.0.dense.weight"),
        HeldMemory(500, 1, "temporary", "aten__mm", ATTENTION, OpScope("encoder.layer.0", "forward")),
    )
    curve = ((0.0, 3_000), (0.2, 3_500), (0.6, 3_200))
    return Preflight("train", (result("v5e-8", costs=costs(), held=held, curve=curve),), profiled=True)


# -- variants and advice ----------------------------------------------------------------------------------------------


def compared() -> Preflight:
    """Two that fit, one that does not, one with which the function fails; and advice."""

    def variant(rows: int, factor: float, **facts: Any) -> VariantResult:
        made = tuple(replace(one, cycles=one.cycles and factor * one.cycles) for one in costs())
        found = result("v5e-8", traced(batch=rows), costs=made, **facts)
        return VariantResult(Variant(f"batch={rows}"), (found,))

    before = result("v5e-8", costs=costs())
    every = (variant(32, 1), variant(64, 1.6, needed=7 * GIB), variant(128, 3, status="too-large", needed=20 * GIB))
    failed = VariantResult(Variant("batch=3"), error="batch 3 is not a multiple of 8")
    tried = (
        TriedChange("multiply in bf16", "--precision bf16", ATTENTION, before, variant(32, 0.5).results[0], worth=True),
        TriedChange("batch = 64", "batch = 64", None, before, variant(32, 1).results[0]),
        TriedChange("batch = 3", "batch = 3", None, before, None, "the function does not run so: it fails"),
    )
    return Preflight("train", (before,), compared=(*every, failed), advice=AdviceResult(tried, asked=True))
