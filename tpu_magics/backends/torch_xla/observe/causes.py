"""The cause of a recompile of a torch_xla graph, from the difference between two compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import (
    CompileCause,
    InputFixes,
    changed,
    first_cause,
    input_change,
    mode_switch,
    unknown,
)
from tpu_magics.backends.torch.hooks import OPTIMIZER_FIX
from tpu_magics.backends.torch_xla.observe.evidence import (
    EXCHANGE,
    NO_ACTION,
    TorchComparison,
    TorchCompileEvidence,
    short_path,
)
from tpu_magics.backends.torch_xla.observe.number_causes import (
    baked_setting,
    items_read,
    python_number,
    random_state,
    sum_begun,
)
from tpu_magics.backends.torch_xla.observe.python_values import Number
from tpu_magics.runs.events import Site

# -- graphs that a library runs ---------------------------------------------------------------------------------------


Functions = Sequence[tuple[str, str]]  # with their files
# Files whose functions wrap others.
_DECORATORS = ("/typing_extensions.py", "/functools.py", "/contextlib.py", "/_contextlib.py")


def exchange_of_ranks(pair: TorchComparison) -> CompileCause | None:
    """Graphs that torch_xla runs by itself, e.g. in xm.mesh_reduce: one for each size of what is exchanged."""
    if pair.new.part.activity != EXCHANGE.activity:
        return None
    if not pair.other_ops:
        return pair.cause(
            "input-shape",
            "The ranks exchange values in this line, and these have another size than before. Each size is a compile.",
            "Exchange values of the same size each time (numbers, not a list that grows), or exchange them less often.",
        )
    return pair.part_cause(
        "This line exchanges values between the ranks. torch_xla runs small graphs of its own for it"
    )


def collective_alone(pair: TorchComparison) -> CompileCause | None:
    """In a rehearsal: a line with several collectives, one of which gathers values that existed already."""
    if pair.new.report.pieces and pair.old.report.pieces:
        return None
    return CompileCause(
        "new-code",
        "This line runs several graphs. One of them is only a collective, with no computation before it.",
        "No action needed: each graph compiles once. One call that gathers all values would need only one graph.",
        normal=True,
    )


def results_joined(pair: TorchComparison) -> CompileCause | None:
    """Batch results that are concatenated on the device and grow."""
    new, change = pair.new, pair.change
    joins = new.report.graph is not None and new.report.graph.counts["concatenate"] > 0
    if change is None or not joins or new.part.activity != "evaluation" or new.part.weights:
        return None
    if not dict(change.added).get("concatenate") and not any(now > before for before, now in change.dims):
        return None
    return pair.cause(
        "live-tensors",
        "The evaluation results are concatenated on the device. They grow with each batch, so each batch compiles "
        f"(at {new.part.line}).",
        "Move the results to the host after each batch: TrainingArguments(eval_accumulation_steps=1).",
    )


def other_part(pair: TorchComparison) -> CompileCause | None:
    """The first graph of a part of what a library does in this line."""
    new, old = pair.new.part, pair.old.part
    if not new.first or new.place is None:
        return None
    if pair.new.trigger == "read":
        return _library_read(pair)
    if new.weights and (new.place, new.weights) == (old.place, old.weights):
        return None
    return pair.part_cause(f"This line runs several graphs. This is the first run of: {new.text}")


def _library_read(pair: TorchComparison) -> CompileCause:
    part = pair.new.part
    within = f"{part.work}, " if part.work else ""
    return pair.cause(
        "early-read",
        f"A library reads a value in the middle of a step: {within}{part.line}. This splits the step's graph.",
        "Each line that reads costs one compile, and the step waits for the value. Use a setting that avoids the read "
        "(Trainer: a larger logging_steps; transformers models: no attention_mask if nothing is padded; causal ones, "
        "such as GPT-2 and Llama: an attention_mask, and attn_implementation='eager').",
    )


def between_steps(pair: TorchComparison) -> CompileCause | None:
    """Small graphs that a library leaves to the loader's sync, besides the steps: a sum of losses reset to 0."""
    new, facts = pair.new.part, pair.new.facts
    if new.place is None or new.weights or facts.backward or facts.stepped or pair.new.inputs or not pair.other_ops:
        return None
    if pair.new.trigger not in ("loader", "sync"):
        return None
    return pair.part_cause(f"This line runs several graphs. This is a small one without a model: {new.text}")


def other_function(pair: TorchComparison) -> CompileCause | None:
    """A library runs the graph of a known user's line from another function, for the first time."""
    if pair.new.through == pair.old.through or not pair.other_ops:
        return None
    path, function = next(iter(new_functions(pair.new.through, pair.old.through)), ("", ""))
    by = f"`{function}` in {short_path(path)}" if function else "another function"
    if pair.new.trigger == "read" and not function:
        return pair.cause(
            "early-read",
            "This line reads a value in the middle of a step, in addition to the graph that a library runs in it.",
            "Read the value after the step's sync, or every N steps: each line that reads costs one compile.",
        )
    if pair.new.trigger == "read":
        return pair.cause(
            "early-read",
            f"In this line, {by} reads a value in the middle of a step. This splits the step's graph.",
            "Log less often (logging_steps), or do not read in the step: each line that reads costs one compile.",
        )
    return pair.new_code(
        f"This line runs several graphs. This one is run by {by}", "Expected once for each graph", True
    )


def new_functions(new: Functions, old: Functions) -> Functions:
    """The functions that only the new one has, nearest to the user's line first; decorators last: `wrapper` says
    nothing."""
    return sorted((one for one in reversed(new) if one not in old), key=lambda one: one[0].endswith(_DECORATORS))


def in_constructor(pair: TorchComparison) -> CompileCause | None:
    """Graphs that the constructor of a library's object runs, e.g. of DistributedDataParallel, which compares the
    ranks' parameters."""
    new = pair.new
    built = next((path for path, function in new.through if function == "__init__"), None)
    if built is None or new.facts.backward or new.facts.stepped:
        return None
    return pair.new_code(f"This line builds an object, which runs graphs of its own ({short_path(built)})", _ONCE, True)


def batch_statistics(pair: TorchComparison) -> CompileCause | None:
    """torch.optim.swa_utils.update_bn, in which each BatchNorm reads how many batches it has seen."""
    if not any(function == "update_bn" for _path, function in pair.new.through):
        return None
    return pair.new_code("update_bn runs the model up to each BatchNorm, which reads its batch counter", _ONCE, True)


def compiled_part(pair: TorchComparison) -> CompileCause | None:
    """torch.compile(backend="openxla"): the forward and the backward pass are graphs of their own."""
    if pair.new.trigger != "call" or pair.inputs or pair.new.nth > _COMPILED_PARTS or not pair.other_ops:
        return None
    return pair.new_code("torch.compile compiles the forward and the backward pass as graphs of their own", _ONCE, True)


def regrouped(pair: TorchComparison) -> CompileCause | None:
    """DistributedDataParallel puts the gradients into other buckets after its first step."""
    wrapped = any(kind == "DistributedDataParallel" for kind, _shapes in pair.new.snapshot.models.values())
    if not wrapped or not pair.new.facts.backward or pair.new.step > 2 or pair.inputs or not pair.other_ops:
        return None
    what = "DistributedDataParallel arranges the buckets of its gradients in the first steps"
    return pair.new_code(what, "Expected in the first three steps", True)


def before_training(pair: TorchComparison) -> CompileCause | None:
    """The earlier graph was not a step: a library's setup before the first one."""
    new, old = pair.new.facts, pair.old.facts
    if not pair.other_ops or not new.backward or old.backward or old.stepped or pair.old.inputs:
        return None
    what = pair.new.part.work or "the first step"
    return pair.part_cause(f"The earlier graph of this line ran before the first step. This one is {what}")


# -- all causes -------------------------------------------------------------------------------------------------------


# One function per cause, in the order of RULES. Each answers only if its evidence explains the new graph, and returns
# None otherwise; the last ones say that the cause is unknown.

_SHOWN = 6
_ACCUMULATION = "Expected with gradient accumulation: one graph for each kind of micro-step"
_ONCE = "Expected once for each graph"
_FEW_SHAPES = 4  # that are named
_OFTEN = 4  # compiles of a line
_COMPILED_PARTS = 3  # of one line: its forward, its backward, and one more where the first step differs
_STATE = {
    False: "the optimizer state is now an input; before, the step created it",
    True: "this step creates the optimizer state; before, it was an input",
}
_TRAINER = " (with Trainer: dataloader_drop_last=True)"
_DTYPE_FIX = "Convert it in the dataset or the collator, so that every batch has the same dtype."
_FIRST_FIX = (
    "Keep the first dimension the same. Where it is the batch: drop_last=True, and evaluate with the training batch "
    "size. Where it is a length: pad to a multiple, and mask the padding."
)
_SHAPE_FIX = (
    "Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator) or to one max_length, and mask the padding."
)
_BRANCHES = "Look for a Python branch or loop that depends on the step"


def explain(new: TorchCompileEvidence, old: TorchCompileEvidence) -> CompileCause:
    """The cause of `new`, compared with `old`."""
    return first_cause(RULES, TorchComparison(new, old))


# -- the rules --------------------------------------------------------------------------------------------------------


def _in_closure(pair: TorchComparison) -> CompileCause | None:
    """An optimizer runs a closure several times in a step (LBFGS)."""
    running, new, old = pair.new.running, pair.new.facts, pair.old.facts
    if running is None or not running.closure or not (new.most_closure_runs > 1 or new.closure_runs > old.closure_runs):
        return None
    what = f"{running.kind} runs this closure several times in a step"
    fix = OPTIMIZER_FIX.format(running.kind)
    if new.closure_syncs:
        return pair.new_code(f"{what}. What it computed since its last read is part of this graph", fix.rstrip("."))
    text = f"{what}, and no torch_xla.sync() ends each run: the graph grows with each."
    return pair.cause("no-sync", text, f"Call torch_xla.sync() at the end of the closure. {fix}")


def _read_by_optimizer(pair: TorchComparison) -> CompileCause | None:
    running, facts = pair.new.running, pair.new.facts
    if running is not None and not running.closure and pair.new.trigger == "read":
        text = f"{running.kind} reads values in its step, and each read compiles its own graph."
        return pair.cause("early-read", text, OPTIMIZER_FIX.format(running.kind))
    if facts.read_by and facts.stepped and facts.optimizer in ("", facts.read_by) and pair.other_ops:
        text = f"{facts.read_by} reads values in its step. What it computed since its last read is part of this graph."
        return pair.cause("early-read", text, OPTIMIZER_FIX.format(facts.read_by))
    return None


def _other_model(pair: TorchComparison) -> CompileCause | None:
    """Another model has the name of the earlier one: a loop over hidden sizes or depths."""
    new, old = pair.new.report.graph, pair.old.report.graph
    if new is None or old is None:
        return None
    taken, taken_before = (Counter(one.shape for one in graph.parameters) for graph in (new, old))
    for name, (before, now) in changed(pair.new.snapshot.sizes, pair.old.snapshot.sizes).items():
        if (now - before) & (taken - taken_before) or (before - now) & (taken_before - taken):
            what = f"`{name}` has other weights than before: it is another model, or one with other sizes"
            return pair.new_code(what, "Expected once for each model", True)
    return None


def _of_other_code(pair: TorchComparison) -> CompileCause | None:
    """Operations that other code left since the last sync: a loop over another model that scales its gradients after
    its sync. They share no tensor with the step, which is otherwise the same."""
    if pair.new.trigger not in ("sync", "loader", "finish"):
        return None
    if _by_id(pair.new.facts.cuts).keys() != _by_id(pair.old.facts.cuts).keys():
        return None
    more, fewer = _parts_apart(pair)
    apart = more or fewer
    if not apart or (more and fewer):
        return None
    ops = Counter[hlo.Op]()
    for part, times in apart.items():
        ops.update({op: count * times for op, count in part})
    if any(op.opcode in hlo.MULTIPLYING for op in ops):
        return None  # it may as well be another step
    total = sum(count for op, count in ops.items() if op.opcode != "parameter")
    of = ", ".join(sorted({str(op.result) for op in ops if op.opcode == "parameter" and op.result.shape})[:_FEW_SHAPES])
    have = "this graph has" if more else "the earlier graph has"
    what = f"Other code left operations that had not run: {have} {total} that share no tensor with the rest of it"
    fix = "Expected once. torch_xla.sync() after that code makes them a graph of their own"
    return pair.new_code(f"{what} (of {of})", fix, pair.new.nth <= _OFTEN)


def _parts_apart(pair: TorchComparison) -> tuple[Counter[hlo.Part], Counter[hlo.Part]]:
    """The parts that only the new graph has and that only the earlier one has, where they have others in common."""
    new, old = pair.new.report.graph, pair.old.report.graph
    if new is None or old is None or not pair.other_ops:
        return Counter(), Counter()
    now, before = hlo.parts(new), hlo.parts(old)
    return (now - before, before - now) if now & before else (Counter(), Counter())


def _mode_switch(pair: TorchComparison) -> CompileCause | None:
    fix = "Expected once for each mode. Use a separate loop for evaluation, with the batch size of training."
    return mode_switch(pair, "step", tuple(_modes(pair)), fix)


def _modes(pair: TorchComparison) -> Iterator[str]:
    """Modes that changed, if the graph shows that it matters."""
    new, old = pair.new.facts, pair.old.facts
    if not pair.other_ops:
        return
    for name, (before, now) in changed(pair.new.snapshot.training, pair.old.snapshot.training).items():
        yield f"{name} is now in {_mode(now)} mode (before: {_mode(before)} mode)"
    if new.autocast != old.autocast:
        yield f"autocast is now {_kinds(new.autocast)} (before: {_kinds(old.autocast)})"
    if new.grad != old.grad or (new.backward != old.backward and new.stepped == old.stepped == False):  # noqa: E712
        yield f"gradients are now {_on(new.grad and new.backward)} (before: {_on(old.grad and old.backward)})"
    elif new.backward != old.backward and new.stepped != old.stepped and pair.new.inputs and pair.old.inputs:
        yield f"this step {_trains(new.backward)}, the earlier one {_trains(old.backward)}"


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def _kinds(kinds: frozenset[str]) -> str:
    return " and ".join(sorted(kinds)) or "off"


def _on(value: bool) -> str:
    return "computed" if value else "not computed"


def _trains(backward: bool) -> str:
    return "has a backward pass and an optimizer step" if backward else "has no backward pass and no optimizer step"


def _input(pair: TorchComparison) -> CompileCause | None:
    if not _in_graph(pair):
        return None
    trainer = _TRAINER if pair.new.part.place else ""
    last = f"Use drop_last=True in the DataLoader{trainer}, or a batch size that divides the number of samples."
    return input_change(pair, InputFixes(last, _DTYPE_FIX, _FIRST_FIX if pair.only_batch_changed else _SHAPE_FIX))


def _in_graph(pair: TorchComparison) -> bool:
    """Whether the graph's parameters changed with the inputs: an input that the graph does not use explains nothing."""
    return pair.change is None or bool(pair.change.parameters)


def _optimizer_state(pair: TorchComparison) -> CompileCause | None:
    new, old = pair.new.facts, pair.old.facts
    if new.state_created == old.state_created or new.stepped != old.stepped or not pair.other_ops:
        return None
    return pair.cause(
        "optimizer-state",
        "Optimizer state is created in the first step. Later steps read and update it, which is another graph.",
        NO_ACTION,
        _STATE[new.state_created],
    )


_SYNC = "Call torch_xla.sync() after optimizer.step(), in the loop, and read values after it."


def _no_sync(pair: TorchComparison) -> CompileCause | None:
    """Nothing but reads run graphs. They compute only what is read, so the graph of a read holds all earlier steps."""
    new, old = pair.new.facts, pair.old.facts
    if pair.new.trigger not in ("read", "finish") or not new.unsynced or not pair.other_ops:
        return None
    if max(new.steps_in_graph, old.steps_in_graph) < 2 and not new.steps_at_line:
        return None
    return pair.cause(
        "no-sync",
        "No torch_xla.sync() ends the steps of this loop: XLA runs nothing until a value is read, and the graph of a "
        "read holds all steps before it.",
        _SYNC,
    )


def _one_by_one(pair: TorchComparison) -> CompileCause | None:
    """A loop over parameters that asks something of each (`if isnan(p).any():`): the same operations, of another shape
    each time."""
    new, old = pair.new.report.graph, pair.old.report.graph
    if new is None or old is None or (pair.new.trigger, pair.old.trigger) != ("read", "read"):
        return None
    if not pair.new.facts.deciding:
        return None
    ops, ops_before = (Counter(op.opcode for op in graph.ops if op.opcode not in _OF_SHAPES) for graph in (new, old))
    shapes, shapes_before = ({one.shape for one in graph.parameters} for graph in (new, old))
    if not ops or ops != ops_before or shapes == shapes_before or any(op in hlo.MULTIPLYING for op in ops):
        return None
    return pair.new_code(
        "Tensors of different shapes are read at this line one after the other: each shape is a program of its own",
        "Compute it for all of them and read once, e.g. torch.stack([check(p) for p in model.parameters()]).tolist(), "
        "or only every N steps. Expected once for each shape",
    )


_OF_SHAPES = frozenset({"parameter", "tuple", "convert", "constant", "reshape", "broadcast", "transpose"})


def _cut_elsewhere(pair: TorchComparison) -> CompileCause | None:
    new, old = _by_id(pair.new.facts.cuts), _by_id(pair.old.facts.cuts)
    only_new = [site for key, site in new.items() if key not in old]
    only_old = [site for key, site in old.items() if key not in new]
    if not only_old and all(site.id == pair.new.site.id for site in only_new):
        if again := _read_again(pair):
            return again
        if pair.change is not None and pair.change.same_ops and pair.change.numbers:
            return None  # the reads before were of this line too: another constant makes the other graph
    if not only_new and not only_old:
        return None
    site = (only_new or only_old)[0]
    if site in (*pair.new.facts.deciding, *pair.old.facts.deciding) and pair.other_ops:
        return _branch(pair, [site])
    if pair.inputs and _in_graph(pair):
        return None
    when = "in this step" if only_new else "in an earlier step but not in this one"
    return pair.cause(
        "early-read",
        f"{_where(site)} read a value {when}. This splits the step's graph at another place.",
        _SYNC
        if pair.new.facts.unsynced > 1
        else "Read values after the step's sync, or every N steps: each new line that reads costs one more compile.",
        f"{_where(site)}: {site.code}",
    )


def _read_again(pair: TorchComparison) -> CompileCause | None:
    again = pair.new.trigger == "read" and pair.new.site.id in _by_id(pair.new.facts.cuts)
    another = pair.other_ops or bool(pair.change and pair.change.parameters)
    if not again or pair.new.facts.deciding or not another or pair.new.inputs != pair.old.inputs:
        return None
    return pair.cause(
        "early-read",
        "This line reads several values in a step, and each read compiles its own graph.",
        _SYNC if pair.new.facts.unsynced > 1 else "Collect the tensors, and read them together after the step's sync.",
    )


def _branch(pair: TorchComparison, deciding: Sequence[Site]) -> CompileCause | None:
    """The first of these lines that read other values than before. That a truth value is another one shows that Python
    took another branch; of a number only that it may have."""
    outcomes = [(site, pair.new.facts.outcomes.get(site.id), pair.old.facts.outcomes.get(site.id)) for site in deciding]
    other = [(site, new, old) for site, new, old in outcomes if new is None or new != old]
    if not other:
        return None
    site, new, old = next((one for one in other if all(map(_are_truths, one[1:]))), other[0])
    took = "took" if _are_truths(new) and _are_truths(old) else "may have taken"
    found = pair.cause(
        "data-branch",
        f"Python {took} another branch because of a tensor's value, read in {_where(site)}.",
        "Compute both branches and select with torch.where, or decide only every N steps.",
        f"{_where(site)}: {site.code}",
    )
    return replace(found, deciding=(site,))


def _are_truths(values: Sequence[Number] | None) -> bool:
    return values is not None and all(isinstance(value, bool) for value in values)


def _data_shape(pair: TorchComparison) -> CompileCause | None:
    ops = pair.new.facts.data_ops or pair.old.facts.data_ops
    sizes = pair.change.sizes if pair.change is not None else ()  # which element is taken is no size
    shapes_changed = bool(sizes) or bool(pair.change and pair.change.parameters)
    if ops and (shapes_changed or pair.change is None):
        names = ", ".join(op.removeprefix("aten::").strip("_2") for op in ops)
        return _data_shaped(pair, f"A shape inside the graph depends on values ({names})")
    read = [(old, new) for old, new in sizes if new in pair.new.facts.values and old in pair.old.facts.values]
    if read:
        old, new = read[0]
        return _data_shaped(pair, f"A size inside the graph was read from a tensor (now {new}, before {old})")
    return None


def _data_shaped(pair: TorchComparison, what: str) -> CompileCause:
    return pair.cause(
        "data-shape",
        f"{what}, so different data need a different graph.",
        "Keep the full shape: multiply by the mask and divide by its sum, instead of selecting elements.",
        what,
    )


def _live_tensors(pair: TorchComparison) -> CompileCause | None:
    grown = changed(pair.new.snapshot.lengths, pair.old.snapshot.lengths)
    change = pair.change
    if change is None:
        moved = (pair.new.report.inputs, pair.new.report.outputs) != (pair.old.report.inputs, pair.old.report.outputs)
    else:
        moved = change.outputs_after != change.outputs_before or any(None in one[1:] for one in change.parameters)
    if grown and moved:
        name, (old, new) = next(iter(grown.items()))
        return _alive(pair, f"`{name}` now holds {new} tensors (before: {old})")
    if change is None or change.outputs_after == change.outputs_before:
        return None
    names = _alive_names(pair)
    if not change.same_ops and (not names or _alien_ops(change)):
        return None
    more, fewer = change.outputs_after, change.outputs_before
    kept = f": {', '.join(f'`{name}`' for name in names)}" if names else ""
    return _alive(pair, f"{more} tensors are alive at the end of the step (before: {fewer}){kept}")


def _alien_ops(change: hlo.GraphChange) -> bool:
    """Whether operations were added and others removed: then it is not the same step with other tensors kept."""
    added = {op for op, _ in change.added} - {"tuple"}
    removed = {op for op, _ in change.removed} - {"tuple"}
    return bool(added and removed)


def _alive_names(pair: TorchComparison) -> list[str]:
    def alive(one: TorchCompileEvidence) -> set[str]:
        return {name for name, seen in one.snapshot.tensors.items() if seen.where == "xla"}

    return sorted(alive(pair.new) ^ alive(pair.old))[:_SHOWN]


def _alive(pair: TorchComparison, what: str) -> CompileCause:
    return pair.cause(
        "live-tensors",
        f"{what}, so the graph has other outputs.",
        "Keep numbers instead of tensors (read them after the sync), or .detach() and drop tensors you do not need.",
        what,
    )


def _new_function(pair: TorchComparison) -> CompileCause | None:
    functions = changed(pair.new.snapshot.functions, pair.old.snapshot.functions)
    if not functions or not pair.other_ops:
        return None
    name, (old, new) = next(iter(functions.items()))
    return pair.new_code(f"`{name}` is now {new}, before {old}", "Use a separate loop for each function")


def _accumulation(pair: TorchComparison) -> CompileCause | None:
    new, old = pair.new.facts, pair.old.facts
    if new.stepped == old.stepped or not (new.backward and old.backward) or not pair.other_ops:
        return None
    if new.deciding and (branch := _branch(pair, new.deciding)):
        return branch
    which = ("runs", "did not") if new.stepped else ("does not run", "did")
    what = f"The optimizer {which[0]} in this step and {which[1]} in the earlier one"
    return pair.new_code(what, _ACCUMULATION, True)


def _added_gradients(pair: TorchComparison) -> CompileCause | None:
    new, old = pair.new.facts, pair.old.facts
    if new.adds == old.adds or not (new.backward and old.backward) or not pair.other_ops or new.deciding:
        return None
    if pair.change is not None:  # the gradients that are there are inputs: `w.grad = None` clears them unseen
        before, now = dict(pair.change.removed), dict(pair.change.added)
        fewer, more = (one.get("parameter", 0) for one in ((before, now) if new.adds else (now, before)))
        if more <= fewer:
            return None
    which = ("adds to gradients that an earlier one left", "began without any")[:: 1 if new.adds else -1]
    return pair.new_code(f"This step {which[0]}; the one compared with {which[1]}", _ACCUMULATION, True)


def _left_over(pair: TorchComparison) -> CompileCause | None:
    """A sample or an evaluation before the step, whose forward pass left more than what was read: the running
    statistics of a BatchNorm."""
    if pair.new.facts.between == pair.old.facts.between or not pair.new.facts.backward or not pair.other_ops:
        return None
    which = "this step" if pair.new.facts.between else "the earlier step"
    what = f"Before {which} values were computed and read without a sync; what they left is part of its graph"
    fix = "Expected once for each. torch_xla.sync() after the read makes it a graph of its own"
    return pair.new_code(what, fix, True)


def _averaged(pair: TorchComparison) -> CompileCause | None:
    """AveragedModel.update_parameters between two epochs: the first step after it computes the average, too. (Where it
    only copies the weights, the graph has the same operations, with other results.)"""
    if not (pair.new.facts.averaged or pair.old.facts.averaged) or not pair.new.facts.backward:
        return None
    what = "The average of the weights (update_parameters) and the next step are one graph: no sync is between them"
    return pair.new_code(what, "Expected once for each kind of average", True)


def _copied_weights(pair: TorchComparison) -> CompileCause | None:
    """load_state_dict with the weights of another model on the device: the next step reads these instead, and has the
    copies as results."""
    new, old = pair.new.facts.loaded, pair.old.facts.loaded
    change = pair.change
    if new == old or change is None or change.same_wiring or not _OF_COPIES.issuperset(_changed_ops(change)):
        return None
    what = f"The weights that load_state_dict copied into a {', '.join(new or old)} are part of the next step's graph"
    fix = "Expected once. torch_xla.sync() after load_state_dict makes the copies a graph of their own"
    return pair.new_code(f"{what}: no sync is between them", fix, True)


def _data_branch(pair: TorchComparison) -> CompileCause | None:
    if not pair.new.facts.deciding or not pair.other_ops:
        return None
    return _branch(pair, pair.new.facts.deciding)


def _other_operations(pair: TorchComparison) -> CompileCause | None:
    if pair.change is None or (pair.change.same_ops and pair.change.same_wiring):
        return None
    if _same_but_operands(pair):
        return pair.new_code(_OTHER_OPERANDS, _PICKED)
    if pair.new.nth == 1 and pair.old.step == 0 and pair.new.step <= 1 and pair.change.parameters:
        return pair.new_code(_FIRST_STEP, "Expected once", True)
    texts = ", ".join(f"{n} now {new}, before {old}" for n, (old, new) in list(_texts(pair).items())[:2])
    why = f" ({texts})" if texts else ""
    return pair.new_code(f"The operations changed between steps{why}", _BRANCHES)


_OF_COPIES = frozenset({"parameter", "tuple", "convert", "constant", "reshape"})


def _changed_ops(change: hlo.GraphChange) -> set[str]:
    return {op for op, _ in (*change.added, *change.removed)}


_FIRST_STEP = (
    "The first step is another graph than later ones: what it created (gradients, the state of a scaler or of a "
    "module) is an input of theirs"
)


_OTHER_OPERANDS = "The operations are the same, but which of the tensors on the device they use differs between steps"
_PICKED = (
    "Where a batch is picked from tensors that are kept on the device (a replay memory), keep them on the host and "
    "send the batch, or keep them in one tensor and index it with a tensor. Where tensors were copied, call "
    "torch_xla.sync() after that"
)


_ENDS = ("parameter", "tuple")  # what goes in and out


def _same_but_operands(pair: TorchComparison) -> bool:
    """Whether the graphs have the same operations of the same shapes, apart from what goes in and out."""
    new, old = pair.new.report.graph, pair.old.report.graph
    if new is None or old is None:
        return False
    kinds, kinds_before = (
        Counter((op.opcode, op.results, op.attributes, op.value) for op in graph.ops if op.opcode not in _ENDS)
        for graph in (new, old)
    )
    return kinds == kinds_before


def _texts(pair: TorchComparison) -> Mapping[str, tuple[object, object]]:
    """The user's strings and flags that changed: a branch that Python took."""
    flags = {name: pairs for name, pairs in pair.numbers().items() if isinstance(pairs[1], bool)}
    return {**flags, **changed(pair.new.snapshot.texts, pair.old.snapshot.texts)}


def _unknown(pair: TorchComparison) -> CompileCause:
    return unknown(pair, [f"{name} now {new:g}, before {old:g}" for name, (old, new) in pair.numbers().items()])


RULES: tuple[Callable[[TorchComparison], CompileCause | None], ...] = (
    exchange_of_ranks,
    collective_alone,
    _in_closure,
    _read_by_optimizer,
    _no_sync,
    items_read,
    in_constructor,
    batch_statistics,
    _other_model,
    _optimizer_state,
    compiled_part,
    regrouped,
    results_joined,
    other_part,
    between_steps,
    other_function,
    before_training,
    _of_other_code,
    _mode_switch,
    _averaged,
    _input,
    _accumulation,
    baked_setting,
    _added_gradients,
    _one_by_one,
    _cut_elsewhere,
    _data_shape,
    random_state,
    _copied_weights,
    _live_tensors,
    sum_begun,
    _left_over,
    python_number,
    _new_function,
    _data_branch,
    _other_operations,
    _unknown,
)


# -- words ------------------------------------------------------------------------------------------------------------


def _by_id(sites: tuple[Site, ...]) -> dict[int, Site]:
    return {site.id: site for site in sites}


def _where(site: Site) -> str:
    return f"line {site.line} of {site.path}" if site.path else f"line {site.line}"
