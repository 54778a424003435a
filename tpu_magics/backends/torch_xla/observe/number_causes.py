"""The cause "python-number": a number of the user's code that is a constant in the graph."""

from __future__ import annotations

import math
from collections import Counter

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import CompileCause
from tpu_magics.backends.torch_xla.observe.evidence import TorchComparison, TorchCompileEvidence
from tpu_magics.backends.torch_xla.observe.python_values import Number

# A Python number becomes an input of torch_xla's graph, except these, which become constants (special scalars).
_BAKED = (0, 1)
_FLOAT32 = 2.0**-25  # half of what a float32 tells apart below 1
_PLAIN_OPS = frozenset({"constant", "parameter", "broadcast", "multiply", "add", "subtract", "convert", "reshape"})


def python_number(pair: TorchComparison) -> CompileCause | None:
    change = pair.change
    if change is None:
        return None
    unused = pair.new.snapshot.unused  # a counter that changes at the same time
    numbers = {name: values for name, values in pair.numbers().items() if name not in unused}
    named = [(name, old, new) for name, (old, new) in numbers.items() if _in_change(change, old, new)]
    changed_ops = {op for op, _ in (*change.added, *change.removed)}
    if not change.same_ops:  # a loop counter changes in every step: it is only a cause if little else changed
        plain = changed_ops <= _PLAIN_OPS and not pair.new.facts.cuts
        named = [one for one in named if plain or "[" in one[0] or "." in one[0]]
    if named:
        if change.starts and (at := _taken_at(pair)):  # before another one of the same values
            named = [one for one in named if one[0] == at[1]] or named
        exact = [one for one in named if one[1:] in change.starts] or [one for one in named if one[1:] in change.dims]
        return _number(pair, *_likeliest(exact or named))
    if change.same_ops and (change.numbers or change.dims or change.attributes):
        return _number_without_name(pair, change)
    baked = [(name, old, new) for name, (old, new) in numbers.items() if _baked_now(pair, old, new)]
    only = changed_ops <= _PLAIN_OPS and _only_numbers(pair, change)
    sure = baked if only else [one for one in baked if isinstance(one[1], float) and _kept(one)]
    return _number(pair, *_likeliest(sure)) if sure else None


_PICKS = frozenset({"parameter", "slice", "reshape", "tuple"})
_PASSES = frozenset({"reshape", "convert", "tuple"})  # what a read does with an item


def items_read(pair: TorchComparison) -> CompileCause | None:
    """`for item in x` or `x[i]` with a read of each: which item it is, is a constant of the read's graph."""
    change, graph = pair.change, pair.new.report.graph
    if change is None or graph is None or pair.new.trigger != "read" or not change.same_ops or not change.starts:
        return None
    if change.parameters or change.sizes or change.numbers or change.attributes or not _ends_in_items(graph):
        return None
    kept = graph.counts.keys() <= _PICKS  # nothing is computed: the tensor is an input
    name = next((one.name for one in pair.new.inputs), "x") if kept else "x"
    which = ""
    if taken := _taken_at(pair):
        tensor, index = taken
        name = tensor or name
        old, new = pair.numbers()[index]
        which = f" (`{index}` is now {new}, before {old})"
    fix = (
        f"Read the whole tensor once, after the step's sync, and take its items in Python: `{name}.tolist()`."
        if kept
        else f"Take the tensor to the host once, before the loop: `{name} = {name}.cpu()`."
    )
    return pair.cause(
        "python-number",
        "This line reads single items of a tensor on the device. Which one it is, is a constant of the graph, so each "
        f"position compiles one more{which}.",
        fix,
    )


def _ends_in_items(graph: hlo.Graph) -> bool:
    """Whether all that goes out was sliced from a tensor just before."""
    ops = graph.ops
    ends, seen = [len(ops) - 1], 0
    while ends:
        at = ends.pop()
        op = ops[at]
        if op.opcode == "slice":
            seen += 1
        elif op.opcode in _PASSES and op.operands and all(op.operands):
            ends += [at - back for back in op.operands]
        else:
            return False
    return seen > 0


def _taken_at(pair: TorchComparison) -> tuple[str, str] | None:
    """(tensor, index), where this line takes an element by a name that changed as the slices of the graph moved; the
    tensor is "" if no variable on the device is known for it."""
    starts, numbers = pair.change.starts if pair.change is not None else (), pair.numbers()
    taken = [one for one in pair.new.snapshot.indexed if numbers.get(one[1]) in starts]
    tensors = {name for name, seen in pair.new.snapshot.tensors.items() if seen.where == "xla"}
    on_device = [one for one in taken if one[0] in tensors]
    return next(iter(on_device or [("", index) for _tensor, index in taken]), None)


# torch_xla 2.9.0 (xla_graph_executor.cpp, GetRngSeed) makes the seed of each draw of random numbers from the one
# before, in the graph, until a sync: by a product with the first and a sum with the second.
_SEED = "214013", "2531011"


def random_state(pair: TorchComparison) -> CompileCause | None:
    """More or fewer random numbers were drawn since the last sync, and nothing else changed."""
    change, new, old = pair.change, pair.new.report.graph, pair.old.report.graph
    if change is None or new is None or old is None:
        return None
    draws = _draws(new) - _draws(old)
    chain = {"constant": 2 * abs(draws), "add": abs(draws), "multiply": abs(draws)}
    if not draws or dict(change.added if draws > 0 else change.removed) != chain:
        return None
    if change.removed if draws > 0 else change.added:
        return None
    return pair.cause(
        "no-sync",
        "Random numbers were drawn more often since the last sync than before the other graph of this line. torch_xla "
        "computes its random state in the graph, which grows with each draw until a sync.",
        "Call torch_xla.sync() after each batch, also of an evaluation, and after drawing samples.",
        f"random numbers drawn since the last sync: {'more' if draws > 0 else 'fewer'} by {abs(draws)}",
    )


def _draws(graph: hlo.Graph) -> int:
    """How many draws of random numbers lead to those of a graph."""
    return min(sum(n for key, n in graph.signature.items() if key.endswith(f" {one}")) for one in _SEED)


_FEW = 4  # operations for each number that became a tensor


def sum_begun(pair: TorchComparison) -> CompileCause | None:
    """`total += x`, where `total` is the number 0 in the first step of a loop and a tensor in the later ones."""
    change = pair.change
    if change is None or change.same_ops or pair.new.facts.deciding:
        return None
    added, removed = dict(change.added), dict(change.removed)
    more = added.get("parameter", 0) - removed.get("parameter", 0)
    small = sum(added.values()) + sum(removed.values()) <= _FEW * abs(more)
    if not small or not added.keys() | removed.keys() <= _PLAIN_OPS:
        return None
    if any(isinstance(now, float) and _baked_now(pair, before, now) for before, now in pair.numbers().values()):
        return None
    sums = [one for one in pair.new.snapshot.tensors.values() if one.where == "xla" and one.leaf and not one.shape]
    names = [one.name for one in sums if one.name in pair.old.snapshot.tensors and "[" not in one.name]
    if not names or pair.new.nth > len(names) + 2:
        return None
    which = ", ".join(f"`{name}`" for name in names[:3])
    what = f"The first step of a loop adds to a number (0), the others to a tensor ({which})"
    return pair.new_code(what, "Expected once for each", True)


def baked_setting(pair: TorchComparison) -> CompileCause | None:
    """A setting (a learning rate) became 0 or 1, or was one of them, whatever else happened in the step."""
    change = pair.change
    if change is None or change.same_ops:
        return None
    numbers = [(name, old, new) for name, (old, new) in pair.numbers().items() if _baked_now(pair, old, new)]
    rates = [one for one in numbers if one[0].endswith("['lr']")]
    return _number(pair, *rates[0]) if rates else None


def _baked_now(pair: TorchComparison, old: Number, new: Number) -> bool:
    """Whether the number changed from a constant of the graph to an input, or back, as the graph did."""
    if isinstance(new, bool) or _is_baked(old) == _is_baked(new):
        return False
    more = _inputs(pair.new, scalar=True).total() - _inputs(pair.old, scalar=True).total()
    return more > 0 if _is_baked(old) else more < 0


def _only_numbers(pair: TorchComparison, change: hlo.GraphChange) -> bool:
    """Whether numbers became constants or inputs, and the tensors that the graph takes in are the same."""
    added, removed = dict(change.added), dict(change.removed)
    moved = {"constant", "parameter"} <= added.keys() | removed.keys()
    same_way = any({"constant", "parameter"} <= ops.keys() for ops in (added, removed))
    return moved and not same_way and _inputs(pair.new, scalar=False) == _inputs(pair.old, scalar=False)


def _inputs(one: TorchCompileEvidence, scalar: bool) -> Counter[hlo.Tensor]:
    """The graph's parameters without dimensions, which Python numbers are, or the others."""
    graph = one.report.graph
    return Counter(each for each in graph.parameters if scalar != bool(each.shape)) if graph else Counter()


def _kept(one: tuple[str, Number, Number]) -> bool:
    """A setting, not a measured value: of an object, a module or an optimizer."""
    return "." in one[0] or "[" in one[0]


def _in_change(change: hlo.GraphChange, old: Number, new: Number) -> bool:
    if isinstance(old, bool) or isinstance(new, bool):
        return False
    return _in_dims(change, old, new) or _in_constants(change, old, new)


def _in_dims(change: hlo.GraphChange, old: Number, new: Number) -> bool:
    return (old, new) in change.dims or any(b - a == new - old and _derived(a, old) for a, b in change.dims)


def _in_constants(change: hlo.GraphChange, old: Number, new: Number) -> bool:
    return any(
        (_same(a, old) and _same(b, new)) or (_same(a, 1 - old) and _same(b, 1 - new)) for a, b in change.numbers
    )  # dropout uses 1 - p


def _derived(size: int, number: Number) -> bool:
    """A size that equals the number, or differs by one (a slice's end, a padding)."""
    return abs(size - number) <= 1


def _same(literal: str, number: Number) -> bool:
    """Whether a literal of the graph is this number, in the graph's precision (bf16 has 8 bits)."""
    try:
        value = float(literal)
    except ValueError:
        return False
    return math.isclose(value, number, rel_tol=4e-3)


def _is_baked(number: Number) -> bool:
    """Also a number that becomes one of them as float32, or whose difference from 1 does (mixup's `1 - lam`)."""
    return any(abs(one - baked) <= _FLOAT32 for one in (number, 1 - number) for baked in _BAKED)


def _likeliest(named: list[tuple[str, Number, Number]]) -> tuple[str, Number, Number]:
    """A number of an optimizer or module, or one with a fraction, before a loop counter, which changes in every
    step."""
    return min(named, key=lambda one: ("[" not in one[0]) + ("." not in one[0]) + (not isinstance(one[2], float)))


# torch_xla 2.9 makes a tensor without dimensions that is 0 or 1 a constant too.
_TO_TENSOR = (
    "Make it a tensor with a dimension on the device (`torch.tensor([x], device=device)`), or use the same value in "
    "every step."
)
_TO_SLICE = (
    "Slice on the host, before the data goes to the device; or select by a tensor: `x[torch.arange(size, "
    "device=device) + torch.tensor([start], device=device)]`."
)


def _limits_a_slice(pair: TorchComparison, old: Number, new: Number) -> bool:
    """Whether the graph has slices, and the number is in its sizes and limits, not among its constants."""
    graph, change = pair.new.report.graph, pair.change
    if graph is None or change is None or not graph.counts["slice"]:
        return False
    return _in_dims(change, old, new) and not _in_constants(change, old, new)


def _number(pair: TorchComparison, name: str, old: Number, new: Number) -> CompileCause:
    baked = (
        " (torch_xla makes 0 and 1 constants of the graph, other numbers are inputs)"
        if _is_baked(old) != _is_baked(new)
        else ""
    )
    return pair.cause(
        "python-number",
        f"A Python number is a constant in the graph: {name} is now {new:g}, before {old:g}{baked}.",
        _TO_SLICE if _limits_a_slice(pair, old, new) else _TO_TENSOR,
        f"{name} now {new:g}, before {old:g}",
    )


def _number_without_name(pair: TorchComparison, change: hlo.GraphChange) -> CompileCause | None:
    pairs: list[tuple[object, object]] = [*change.numbers, *change.dims, *change.attributes]
    old, new = pairs[0]
    if pair.new.facts.cuts:
        return None
    return pair.cause(
        "python-number",
        f"A number in the graph changed: now {new}, before {old}. Its name in your code was not found.",
        "Look for a Python number that this step uses. Make it a tensor with a dimension, or use the same value.",
    )
