"""What to change in a step, `--advise`: changes that apply to it, each tried by a compile before it is said.

A change is tried as a variant of the trace (variants.py), without a change of the code. What the compiler's estimate of
the time for a sample, or the memory, does not gain is not proposed, but named as tried.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpu_magics.backends.base import BF16, OFF, ON, PAD, REMAT
from tpu_magics.backends.lowered import RECOMPUTE, SourceLine
from tpu_magics.launch.plan import Options
from tpu_magics.preflight.compile_result import MATMUL
from tpu_magics.preflight.pipeline import PreflightPipeline, TrainingCall
from tpu_magics.preflight.profile import ProfiledOp
from tpu_magics.preflight.report import AdviceResult, TargetResult, TriedChange, Variant, VariantResult
from tpu_magics.preflight.roofline import ROWS, THRESHOLDS
from tpu_magics.preflight.variants import compare

MOST = 8  # compiles
WORTH = 0.03  # of the time for a sample, or of the memory: a change that gains less is not proposed
LANES = 128  # of a tile
_LARGE = 0.02  # of the time: smaller causes are not looked for
_FULL, _EMPTY = 0.2, 0.4  # free parts of the HBM: less is nearly full, more is room for a batch twice as large


@dataclass(frozen=True)
class Proposal:
    """A change to try. `what`: in words; `todo`: what to write; `place`: the line that it is about; `about_memory`:
    whether it is there for the memory, and may take time."""

    what: str
    todo: str
    variant: Variant
    place: SourceLine | None = None
    about_memory: bool = False


# -- what applies -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """The step that is looked at. `numbers`: names with whole numbers that the function has as arguments, or reads from
    the notebook."""

    result: TargetResult
    numbers: Mapping[str, int]

    @property
    def ops(self) -> list[ProfiledOp]:
        return [one for one in self.result.profile.ops if not one.is_hidden]

    @property
    def rows_name(self) -> str:
        """The one name that has the number of rows; "" where there is none, or several."""
        names = [name for name, value in self.numbers.items() if value == self.result.traced.batch]
        return names[0] if len(names) == 1 else ""

    def share(self, ops: Sequence[ProfiledOp]) -> float:
        """Of the time of the step."""
        whole = self.result.profile.whole.weight
        return sum(one.least if one.seconds is None else one.seconds for one in ops) / whole if whole else 0.0


_TO_BF16 = '%%tpu_train --precision bf16, or Accelerator(mixed_precision="bf16")'


def bf16(subject: Subject) -> Iterator[Proposal]:
    share = subject.result.bf16_share
    if share is not None and share < THRESHOLDS["bf16"].good and not subject.result.traced.precision.startswith("bf16"):
        yield Proposal("multiply in bf16", _TO_BF16, Variant("precision=bf16", precision="bf16"))


def islands(subject: Subject) -> Iterator[Proposal]:
    """Multiplications of f32 in a step whose others are bf16, by module and line."""
    if not (subject.result.bf16_share or 0):
        return
    found: dict[tuple[str, SourceLine], list[ProfiledOp]] = {}
    for one in subject.ops:
        cost = one.cost
        if cost.kind == MATMUL and cost.dtype == "f32" and cost.place is not None:
            found.setdefault((cost.scope.module, cost.place), []).append(one)
    largest = sorted(found.items(), key=lambda item: -subject.share(item[1]))[:2]
    for (module, place), ops in largest:
        if subject.share(ops) >= _LARGE:
            what = f"bf16 for the f32 matmuls of {module or 'this line'}"
            todo = "inside torch.autocast, without .float(); or x.to(torch.bfloat16) before the matmul"
            yield Proposal(what, todo, Variant(what, changes=(f"{BF16}={module}@{place}",)), place)


def padding(subject: Subject) -> Iterator[Proposal]:
    """Sizes of weights that fill no tile, in multiplications that take time. Under SPMD, weights would lose their
    shardings."""
    if subject.result.devices > 1:
        return
    names: dict[int, str] = {}  # of a weight that has this size
    graph = subject.result.graph
    for place in graph.donors:  # what a step changes: inputs are none of them
        type_, _, name = graph.parameters[place].partition(" ") if place < len(graph.parameters) else ("", "", "")
        dims = _dims(type_)
        for size in dims if len(dims) == 2 and name and " of " not in name else ():
            if size % LANES and size > ROWS:
                names.setdefault(size, name)
    for size in sorted(names, key=lambda one: -subject.share(_with_size(subject, one)))[:2]:
        ops = _with_size(subject, size)
        if subject.share(ops) >= _LARGE:
            padded = -(-size // LANES) * LANES
            line = max(ops, key=lambda one: one.seconds or 0.0).cost.place
            what = f"{size:,} to {padded:,}, a multiple of {LANES} ({names[size]})"
            todo = f"create the model with {padded:,} in the place of {size:,}; what is added stays unused"
            yield Proposal(what, todo, Variant(what, changes=(f"{PAD}={size}:{padded}",)), line)


def _dims(type_: str) -> list[int]:
    found = re.match(r"\w+\[([\d,]*)\]", type_)
    return [int(one) for one in found[1].split(",") if one] if found else []


def _with_size(subject: Subject, size: int) -> list[ProfiledOp]:
    pattern = re.compile(rf"[\[,]{size}[\],]")
    return [one for one in subject.ops if pattern.search(one.cost.shape)]


def checkpointing(subject: Subject) -> Iterator[Proposal]:
    free = subject.result.headroom
    again = [one for one in subject.ops if one.cost.scope.phase == RECOMPUTE]
    if again and free is not None and free > _FULL:
        todo = "leave out gradient checkpointing: gradient_checkpointing_disable()"
        yield Proposal("no gradient checkpointing", todo, Variant("remat=off", changes=(f"{REMAT}={OFF}",)))
    elif not again and free is not None and free < _FULL:
        todo = "model.gradient_checkpointing_enable(), or torch.utils.checkpoint around each layer"
        change = Variant("remat=on", changes=(f"{REMAT}={ON}",))
        yield Proposal("gradient checkpointing", todo, change, about_memory=True)


def batch(subject: Subject) -> Iterator[Proposal]:
    """Where one name alone has the number of rows."""
    rows, free = subject.result.traced.batch, subject.result.headroom
    if rows is None or not subject.rows_name or free is None:
        return
    wanted = [-(-rows // ROWS) * ROWS] if rows % ROWS else []
    wanted += [2 * max(rows, ROWS)] if free > _EMPTY else []
    for size in wanted:
        yield _with_rows(subject.rows_name, size)


def too_large(subject: Subject) -> Iterator[Proposal]:
    """Of a step that does not fit: what needs less memory."""
    if not subject.result.traced.precision.startswith("bf16"):
        yield Proposal("bf16", _TO_BF16, Variant("precision=bf16", precision="bf16"), about_memory=True)
    yield from checkpointing(subject)
    rows = subject.result.traced.batch
    if rows is not None and rows > 1 and subject.rows_name:
        yield replace(_with_rows(subject.rows_name, rows // 2), about_memory=True)


def _with_rows(name: str, rows: int) -> Proposal:
    what = f"{name} = {rows}"
    return Proposal(what, what, Variant(what, sizes=((name, rows),)))


PROPOSALS: tuple[Callable[[Subject], Iterator[Proposal]], ...] = (bf16, islands, padding, checkpointing, batch)


def subject_of(result: TargetResult, call: TrainingCall, namespace: Mapping[str, Any]) -> Subject:
    """With the whole numbers among the function's arguments, and among the notebook's names that it uses."""
    found: dict[str, Any] = {}
    function = inspect.unwrap(call.function)
    code = getattr(function, "__code__", None)
    space = {**getattr(function, "__globals__", {}), **namespace}
    found.update({name: space[name] for name in getattr(code, "co_names", ()) if name in space})
    try:
        bound = inspect.signature(function).bind(*call.args, **call.kwargs)
        bound.apply_defaults()
        found.update(bound.arguments)
    except (TypeError, ValueError):
        pass
    return Subject(result, {name: value for name, value in found.items() if type(value) is int})


# -- what is tried ----------------------------------------------------------------------------------------------------


def advise(
    call: TrainingCall,
    result: TargetResult,
    options: Options,
    namespace: dict[str, Any],
    pipeline: Callable[[TrainingCall, Options], PreflightPipeline],
) -> AdviceResult:
    """Try what applies, and tell what it gains, the most first; then what gains nothing."""
    subject = subject_of(result, call, namespace)
    if result.status == "too-large":
        found = list(too_large(subject))
    elif result.profile.missing:
        return AdviceResult(asked=True, missing=result.profile.missing)
    else:
        found = [one for propose in PROPOSALS for one in propose(subject)][:MOST]
    tried = compare(call, options, [one.variant for one in found], [result.target], namespace, pipeline)
    told = [_tried(proposal, result, one) for proposal, one in zip(found, tried, strict=True)]
    return AdviceResult(tuple(sorted(told, key=lambda one: (not one.worth, -(one.time_gain or 0.0)))), asked=True)


def _tried(proposal: Proposal, before: TargetResult, tried: VariantResult) -> TriedChange:
    after = tried.results[0] if tried.results else None
    error = f"the function does not run so: {tried.error}" if tried.error else ""
    if after is not None and proposal.variant.changes and after.graph.hash == before.graph.hash:
        after, error = None, "it changes nothing in this step"
    change = TriedChange(proposal.what, proposal.todo, proposal.place, before, after, error)
    time, memory = change.time_gain or 0.0, change.memory_gain or 0.0
    fits = after is not None and after.fits
    mends = fits and not before.fits
    worth = fits and (memory >= WORTH if proposal.about_memory else time >= WORTH)
    return replace(change, worth=mends or worth)
