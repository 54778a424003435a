"""What to change in a step, `--advise`: changes that apply to it, each tried by a compile before it is said.

A change is tried as a variant of the trace (variants.py), without a change of the code; those of models are for
torch_xla. What the compiler's estimate of the time for a sample, or the memory, does not gain is not proposed, but
named as tried.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpu_magics.backends.base import BF16, FLASH, HEADS, OFF, ON, PAD, REMAT, TRANSPOSE, VECTORS
from tpu_magics.backends.lowered import RECOMPUTE, SourceLine
from tpu_magics.launch.options import Options
from tpu_magics.preflight.compile_result import COLLECTIVE, COPY, GATHER, MATMUL, SCATTER
from tpu_magics.preflight.pipeline import PreflightPipeline, TrainingCall
from tpu_magics.preflight.profile import ProfiledOp
from tpu_magics.preflight.report import AdviceResult, TargetResult, TriedChange, Variant, VariantResult
from tpu_magics.preflight.roofline import ROWS, THRESHOLDS
from tpu_magics.preflight.variants import compare

MOST = 8  # compiles
WORTH = 0.03  # of the time for a sample, or of the memory: a change that gains less is not proposed
LANES = 128  # of a tile
_SAME = 0.005  # of the time: a change that is there for the time, and gains memory alone, takes no more
_LARGE = 0.02  # of the time: smaller causes are not looked for
_SCORES = 0.1  # of the HBM in use: smaller buffers of attention scores are left as they are
_SHORTER = 0.1  # of a sample: more is not left out
_FULL, _EMPTY = 0.2, 0.4  # free parts of the HBM: less is nearly full, more is room for a batch twice as large


@dataclass(frozen=True)
class Proposal:
    """A change to try. `what`: in words; `todo`: what to write; `place`: the line that it is about; `about_memory`:
    whether it is there for the memory, and may take time; `left_out`: the part of each sample that is not used any
    more, which it has to gain besides."""

    what: str
    todo: str
    variant: Variant
    place: SourceLine | None = None
    about_memory: bool = False
    left_out: float = 0.0


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

    @property
    def weights(self) -> Iterator[tuple[str, list[int]]]:
        """What a step trains, with its name: inputs and optimizer state are none of it."""
        graph = self.result.graph
        for place in graph.donors:
            type_, _, name = graph.parameters[place].partition(" ") if place < len(graph.parameters) else ("", "", "")
            if name and " of " not in name:
                yield name, _dims(type_)

    def share(self, ops: Sequence[ProfiledOp]) -> float:
        """The share of the time of the step."""
        whole = self.result.profile.whole.weight
        return sum(one.least if one.seconds is None else one.seconds for one in ops) / whole if whole else 0.0


_TO_BF16 = "%%tpu_train --precision bf16, or the mixed precision of your library"


def bf16(subject: Subject) -> Iterator[Proposal]:
    share = subject.result.bf16_share
    if share is not None and share < THRESHOLDS["bf16"].good and not subject.result.traced.precision.startswith("bf16"):
        yield Proposal("multiply in bf16", _TO_BF16, Variant("precision=bf16", precision="bf16"))


def islands(subject: Subject) -> Iterator[Proposal]:
    """Multiplications of f32 in a step whose others are bf16, by line: alone among others of f32, one gains little."""
    if not (subject.result.bf16_share or 0):
        return
    found: dict[SourceLine, list[ProfiledOp]] = {}
    for one in subject.ops:
        cost = one.cost
        if cost.kind == MATMUL and cost.dtype == "f32" and cost.place is not None:
            found.setdefault(cost.place, []).append(one)
    largest = sorted(found.items(), key=lambda item: -subject.share(item[1]))[:2]
    for place, ops in largest:
        if subject.share(ops) >= _LARGE:
            modules = sorted({one.cost.scope.module for one in ops})
            what = f"bf16 for the f32 matmuls of {', '.join(filter(None, modules)) or 'this line'}"
            todo = "inside torch.autocast, without .float(); or x.to(torch.bfloat16) before the matmul"
            changes = tuple(f"{BF16}={module}@{place}" for module in modules)
            yield Proposal(what, todo, Variant(what, changes=changes), place)


def padding(subject: Subject) -> Iterator[Proposal]:
    """Sizes of weights that fill no tile, in multiplications that take time. Under SPMD, weights would lose their
    shardings."""
    if subject.result.devices > 1:
        return
    names: dict[int, str] = {}  # of a weight that has this size
    for name, dims in subject.weights:
        for size in dims if len(dims) == 2 else ():
            if size % LANES and size > ROWS:
                names.setdefault(size, name)
    together = {size: [each for each in names if each in (2 * size, 3 * size, 4 * size)] for size in names}
    parts = {each for found in together.values() for each in found}  # of a fused projection, padded with what it is of
    found = [size for size in names if size not in parts]
    for size in sorted(found, key=lambda one: -subject.share(_with_size(subject, one)))[:2]:
        ops = _with_size(subject, size)
        if subject.share(ops) >= _LARGE:
            padded = _aligned(size)
            line = max(ops, key=lambda one: one.seconds or 0.0).cost.place
            what = f"{size:,} to {padded:,}, a multiple of {LANES} ({names[size]})"
            todo = f"create the model with {padded:,} in the place of {size:,}; what is added stays unused"
            changes = tuple(f"{PAD}={each}:{each // size * padded}" for each in (size, *together[size]))
            yield Proposal(what, todo, Variant(what, changes=changes), line)


def _aligned(size: int) -> int:
    return -(-size // LANES) * LANES


def _dims(type_: str) -> list[int]:
    found = re.match(r"\w+\[([\d,]*)\]", type_)
    return [int(one) for one in found[1].split(",") if one] if found else []


def _with_size(subject: Subject, size: int) -> list[ProfiledOp]:
    pattern = re.compile(rf"[\[,]{size}[\],]")
    return [one for one in subject.ops if pattern.search(one.cost.shape)]


def lengths(subject: Subject) -> Iterator[Proposal]:
    """Names with the length of a sequence that fills no tile."""
    known = {size for _, dims in subject.weights for size in dims} | {subject.result.traced.batch}
    for name, size in subject.numbers.items():
        if size in known or size % LANES == 0 or size <= ROWS or subject.share(_with_size(subject, size)) < _LARGE:
            continue
        longer, shorter = _aligned(size), size // LANES * LANES
        yield Proposal(what := f"{name} = {longer}", what, Variant(what, sizes=((name, longer),)))
        if size - shorter <= _SHORTER * size:
            what, part = f"{name} = {shorter}", (size - shorter) / size
            todo = f"{what}: without the last {size - shorter} of each sample"
            yield Proposal(what, todo, Variant(what, sizes=((name, shorter),)), left_out=part)


# -- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionScores:
    """Matrix multiplications of attention: `ops`, that make scores of `shape`, for `heads` heads of `size` in each
    sample (0: not known)."""

    ops: list[ProfiledOp]
    shape: str
    heads: int
    size: int


def attention_scores(subject: Subject) -> AttentionScores | None:
    """The largest ones."""
    found: dict[tuple[str, int, int], list[ProfiledOp]] = {}
    for one in subject.ops:
        sides = [[int(size) for size in dims.split(",")] for dims in re.findall(r"\[([\d,]+)\]", one.cost.shape)]
        if one.cost.kind != MATMUL or len(sides) != 3 or len(sides[2]) < 3:
            continue
        left, right, scores = sides
        *lead, queries, keys = scores
        several = math.prod(lead)
        size = math.isqrt(math.prod(left) * math.prod(right) // (math.prod(scores) * several))
        whole = [several * length * size for length in (queries, keys)]
        if sorted(map(math.prod, (left, right))) == sorted(whole) and size < min(queries, keys):
            heads = several // (subject.result.traced.batch or several)
            found.setdefault((",".join(map(str, scores)), heads, size), []).append(one)
    largest = max(found, key=lambda each: subject.share(found[each]), default=None)
    return None if largest is None else AttentionScores(found[largest], *largest)


_WITH_FLASH = (
    "torch_xla.experimental.custom_kernel.flash_attention in the place of scaled_dot_product_attention, without "
    "dropout; its time has no estimate, and the memory has room for a larger batch"
)


def flash_attention(subject: Subject) -> Iterator[Proposal]:
    """Where scores of all queries and keys are a large part of the memory."""
    scores = attention_scores(subject)
    if scores is None or subject.result.devices > 1:
        return
    held = [one for one in subject.result.steady.buffers if one.shape.endswith(f"[{scores.shape}]")]
    memory = subject.result.steady.memory
    if memory is not None and sum(one.size for one in held) >= _SCORES * memory.needed:
        yield _by_kernel(scores.ops[0].cost.place)


def _by_kernel(place: SourceLine | None) -> Proposal:
    change = Variant("flash attention", changes=(f"{FLASH}={ON}",))
    return Proposal("flash attention", _WITH_FLASH, change, place, about_memory=True)


def heads(subject: Subject) -> Iterator[Proposal]:
    """Heads that are smaller than a tile: as many parameters in fewer heads."""
    scores = attention_scores(subject)
    if scores is None or scores.heads < 2 or scores.size >= LANES or subject.result.devices > 1:
        return
    width = scores.heads * scores.size
    padded = _aligned(width)
    sizes = sorted({size for _, dims in subject.weights for size in dims})
    widths = [times * width for times in (1, 2, 3, 4) if padded != width and times * width in sizes]
    changes = [f"{PAD}={one}:{one // width * padded}" for one in widths]
    fewer = f"{padded // LANES}x{LANES}"
    what = f"attention with {padded // LANES} heads of {LANES}, not {scores.heads} of {scores.size}"
    todo = "create the model with these; for training from scratch"
    change = Variant(what, changes=(*changes, f"{HEADS}={scores.heads}x{scores.size}:{fewer}"))
    yield Proposal(what, todo, change, scores.ops[0].cost.place)


# -- layouts ----------------------------------------------------------------------------------------------------------

_LAYOUT = re.compile(r"\w+\[([\d,]+)\]\{([\d,]+)")


def layouts(subject: Subject) -> Iterator[Proposal]:
    """Weights that each step copies into another layout and back, with their optimizer state."""
    if subject.result.devices > 1:
        return
    names = {",".join(map(str, dims)): name for name, dims in reversed(list(subject.weights))}
    found: dict[str, list[ProfiledOp]] = {}
    for one in subject.ops:
        shape = _LAYOUT.match(one.cost.shape) if one.cost.kind == COPY else None
        if shape is not None and shape[1] in names:
            found.setdefault(shape[1], []).append(one)
    for dims, ops in found.items():
        swapped = _swapped(subject, dims, ops)
        if swapped is not None and subject.share(ops) >= _LARGE:
            sizes = dims.split(",")
            first, second = swapped
            sizes[first], sizes[second] = sizes[second], sizes[first]
            what = f"no copies of {names[dims]} into another layout"
            todo = f"store it as ({', '.join(sizes)}) and use weight.transpose({first}, {second})"
            change = Variant(what, changes=(f"{TRANSPOSE}={dims.replace(',', 'x')}:{first},{second}",))
            line = next((one.cost.place for one in subject.ops if f"[{dims}] " in f"{one.cost.shape} "), None)
            yield Proposal(what, todo, change, line)


def _swapped(subject: Subject, dims: str, ops: Sequence[ProfiledOp]) -> tuple[int, int] | None:
    """The two dimensions by which the layouts of these copies differ, those of the weights among them."""
    texts = [one.cost.shape for one in ops]
    texts += [one.shape + one.layout for one in subject.result.steady.buffers if one.shape.endswith(f"[{dims}]")]
    orders = {found[2] for text in texts if (found := _LAYOUT.match(text))}
    if len(orders) != 2:
        return None
    one, other = (order.split(",") for order in sorted(orders))
    first, second = next((int(a), int(b)) for a, b in zip(one, other, strict=True) if a != b)
    return min(first, second), max(first, second)


# -- shardings --------------------------------------------------------------------------------------------------------


def embeddings(subject: Subject) -> Iterator[Proposal]:
    """Under SPMD, tables that are read by rows: where these are sharded, each lookup sums over the devices."""
    if subject.result.devices == 1:
        return
    for name, dims in subject.weights:
        module = name.rpartition(".")[0]
        ops = [one for one in subject.ops if one.cost.scope.module == module and one.cost.kind in _OF_LOOKUPS]
        if len(dims) == 2 and any(one.cost.kind == GATHER for one in ops) and subject.share(ops) >= _LARGE:
            what = f"{name} sharded over its vectors, not its rows"
            todo = f"xs.mark_sharding(model.{name}, mesh, (None, AXIS))"
            change = Variant(what, changes=(f"{VECTORS}={dims[0]}x{dims[1]}",))
            yield Proposal(what, todo, change, next(one.cost.place for one in ops if one.cost.kind == GATHER))


_OF_LOOKUPS = (GATHER, SCATTER, COLLECTIVE)

# -- memory -----------------------------------------------------------------------------------------------------------


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
    """Advice for a step that does not fit: what needs less memory."""
    if not subject.result.traced.precision.startswith("bf16"):
        yield Proposal("bf16", _TO_BF16, Variant("precision=bf16", precision="bf16"), about_memory=True)
    yield from checkpointing(subject)
    if subject.result.devices == 1:
        yield _by_kernel(None)
    rows = subject.result.traced.batch
    if rows is not None and rows > 1 and subject.rows_name:
        yield replace(_with_rows(subject.rows_name, rows // 2), about_memory=True)


def _with_rows(name: str, rows: int) -> Proposal:
    what = f"{name} = {rows}"
    return Proposal(what, what, Variant(what, sizes=((name, rows),)))


PROPOSALS: tuple[Callable[[Subject], Iterator[Proposal]], ...] = (
    *(bf16, islands, padding, heads, lengths, layouts),
    *(flash_attention, embeddings, checkpointing, batch),
)


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
    if result.status != "too-large" and result.profile.missing:
        return AdviceResult(asked=True, missing=result.profile.missing)
    found = [one for one in proposals(subject) if call.can_change_models or not one.variant.changes]
    told = try_out(found[:MOST], call, result, options, namespace, pipeline)
    return AdviceResult(tuple(sorted(told, key=_order)), asked=True)


def proposals(subject: Subject) -> list[Proposal]:
    """What applies."""
    if subject.result.status == "too-large":
        return list(too_large(subject))
    return [one for propose in PROPOSALS for one in propose(subject)]


def try_out(
    found: Sequence[Proposal],
    call: TrainingCall,
    result: TargetResult,
    options: Options,
    namespace: dict[str, Any],
    pipeline: Callable[[TrainingCall, Options], PreflightPipeline],
) -> list[TriedChange]:
    """Each compiled, in their order."""
    tried = compare(call, options, [one.variant for one in found], [result.target], namespace, pipeline)
    return [_tried(proposal, result, one) for proposal, one in zip(found, tried, strict=True)]


def _order(one: TriedChange) -> tuple[bool, float]:
    return not one.worth, -(one.time_gain or 0.0)


def _tried(proposal: Proposal, before: TargetResult, tried: VariantResult) -> TriedChange:
    after = tried.results[0] if tried.results else None
    error = f"the function does not run so: {tried.error}" if tried.error else ""
    if after is not None and proposal.variant.changes and after.graph.hash == before.graph.hash:
        after, error = None, "it changes nothing in this step"
    change = TriedChange(proposal.what, proposal.todo, proposal.place, before, after, error)
    time, memory = ((gain or 0.0) - proposal.left_out for gain in (change.time_gain, change.memory_gain))
    fits = after is not None and after.fits
    fixes = fits and not before.fits
    worth = time >= WORTH or (memory >= WORTH and (proposal.about_memory or time >= -_SAME))
    return replace(change, worth=fixes or (fits and worth))
