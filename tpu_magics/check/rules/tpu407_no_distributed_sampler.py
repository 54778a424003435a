"""Every rank trains on the same data.

What it does
    Reports a `DataLoader` for training without a distributed sampler in the workers of a hand-written loop: launched in
    several processes, without accelerate or a Trainer.
Why this is bad
    Each rank then trains on the whole dataset: eight chips do the work of one, eight times, and an epoch takes as long
    as on one chip.
Example
    def _mp_fn(index):
        loader = DataLoader(dataset, batch_size=32, shuffle=True)
Use instead
    def _mp_fn(index):
        sampler = DistributedSampler(dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
Limitations
    A dataset that already differs between ranks is reported if the code does not show it. Loaders for evaluation (by
    name, or used without a step), iterable datasets, and data that depends on the rank are not reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _loaders, _ranks, _steps, _workers
from tpu_magics.check.values import NOTHING, NUMBER

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU407"
NAME = "no-distributed-sampler"
GROUP = "launch"
WHY = "Each rank trains on the whole dataset: all chips do the same work, and an epoch takes as long as on one chip."
_PLAIN_SAMPLERS = frozenset(
    "torch.utils.data." + one for one in ("RandomSampler", "SequentialSampler", "WeightedRandomSampler")
)
_SPLITS = re.compile(
    r"world_?size|num_?(shards|replicas|processes)|ordinal|\brank\b|process_index|IterableDataset|streaming"
)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.uses("torch_xla") or program.calls("transformers.Trainer"):
        return
    for call in program.calls(_loaders.LOADER):
        if not _is_in_workers(call, program) or _steps.is_handled(call.ctx) or _is_split(call):
            continue
        if not _loaders.is_for_evaluation(call, program):
            yield _finding(call)


def _finding(call: CallSite) -> Finding:
    ctx = call.ctx
    data = ctx.argument(call.node, "dataset", 0)
    shown = ctx.source(data) if data is not None else "dataset"
    sampler = f"DistributedSampler({shown}, num_replicas=xr.world_size(), rank=xr.global_ordinal())"
    instead = " instead of `shuffle`" if ctx.argument(call.node, "shuffle", 2) is not None else ""
    fix = f"Pass `sampler={sampler}`{instead}."
    return ctx.finding(call.node, f"The DataLoader over `{shown}` gives every rank all of the data.", fix)


def _is_in_workers(call: CallSite, program: CheckedProgram) -> bool:
    """Whether several workers use the loader: they make it, or read it from the notebook."""
    if _workers.in_several(call.ctx):
        return True
    if not call.ctx.top_level or _workers.launches_of(call.ctx):
        return False
    name = _loaders.target(call)
    readers = [one for one in program.functions if name in one.reads and one.calls]
    return bool(name) and any(_workers.in_several(one.calls[0].ctx) for one in readers)


def _is_split(call: CallSite) -> bool:
    """Whether the ranks get different data, or it is unknown."""
    ctx, node = call.ctx, call.node
    if ctx.has_unknown_arguments(node) or ctx.argument(node, "batch_sampler", 4) is not None:
        return True
    sampler = ctx.argument(node, "sampler", 3)
    if sampler is not None and not _is_plain(sampler, ctx):
        return True
    data = ctx.argument(node, "dataset", 0)
    return data is None or _is_own(data, ctx)


def _is_plain(sampler: ast.expr, ctx: RuleContext) -> bool:
    """Whether a sampler ignores ranks."""
    value = ctx.value(sampler)
    if value.kind == NUMBER and value.const is not NOTHING:
        return value.const is None and isinstance(sampler, ast.Constant)
    return value.name in _PLAIN_SAMPLERS


def _is_own(data: ast.expr, ctx: RuleContext) -> bool:
    """Whether the dataset depends on the rank, or is an iterable dataset that splits itself."""
    value = ctx.value(data)
    if "IterableDataset" in value.name:
        return True
    if value.ref is not None and any("IterableDataset" in base for base in value.ref.all_bases()):
        return True
    if _ranks.depends(data, ctx) or _SPLITS.search(ctx.source(data)):
        return True
    made = value.made
    if made is not None and _SPLITS.search(ctx.program.cells[value.made_ctx.cell_index].segment(made)):
        return True
    values = _ranks.definitions(ctx.function).get(data.id, []) if isinstance(data, ast.Name) and ctx.function else []
    return any(_ranks.depends(one, ctx) or _SPLITS.search(ctx.source(one)) for one in values)
