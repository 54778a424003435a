"""Why a line compiled again: rules that compare a compile with the nearest earlier one of its site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tpu_magics.backends import hlo
from tpu_magics.backends.observing.compile_evidence import CompileCause
from tpu_magics.backends.tensorflow.observe.function_compile import FunctionCompile
from tpu_magics.backends.tensorflow.observe.traced_functions import Literal
from tpu_magics.runs.events import Input

_FLAGS = ("training", "is_training", "train", "trainable", "inference")
_ONCE_EACH = "Expected once per mode. Use the training batch size in the other modes."
_DROP_ARRAYS = "Use a batch_size that divides the number of samples, or a tf.data pipeline with drop_remainder=True."
_DROP_PIPELINE = (
    "Use batch(..., drop_remainder=True). To keep all samples, pad the last batch and give padded rows weight 0."
)
_SAME_BATCH = "Use the same batch size in every step: batch(..., drop_remainder=True), also for evaluation."
_PAD = (
    "Pad to a multiple: padded_batch(..., padded_shapes=..., drop_remainder=True), or pad_to_multiple_of=64 in "
    "the tokenizer. An input_signature with None saves retraces, not compiles."
)


@dataclass
class FunctionComparison:
    """A compile and the nearest earlier one of its site."""

    new: FunctionCompile
    old: FunctionCompile
    change: hlo.GraphChange | None = None
    inputs: list[tuple[Input, Input]] = field(default_factory=list)
    literals: dict[str, tuple[Literal, Literal]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        new, old = self.new.report.graph, self.old.report.graph
        if new is not None and old is not None:
            self.change = hlo.compare(new, old)
        before = {one.name: one for one in self.old.inputs}
        both = [(one, before[one.name]) for one in self.new.inputs if one.name in before]
        self.inputs = [(one, other) for one, other in both if one != other]
        now, then = self.new.facts.literals, self.old.facts.literals
        self.literals = {name: (then[name], value) for name, value in now.items() if name in then}
        self.literals = {name: pair for name, pair in self.literals.items() if _differs(*pair)}

    @property
    def same_function(self) -> bool:
        """Whether both were made from the same Python function."""
        return self.new.facts.code == self.old.facts.code and self.new.facts.function == self.old.facts.function

    @property
    def evidence(self) -> tuple[str, ...]:
        """Sentences about the graphs."""
        return self.change.lines() if self.change is not None else ()

    @property
    def input_lines(self) -> tuple[str, ...]:
        """Sentences about the inputs."""
        return tuple(_input_change(*one) for one in self.inputs)


def explain(new: FunctionCompile, old: FunctionCompile) -> CompileCause:
    """The cause of `new`, compared with `old`."""
    pair = FunctionComparison(new, old)
    return next(verdict for rule in RULES if (verdict := rule(pair)) is not None)


def distance(new: FunctionCompile, old: FunctionCompile) -> tuple[int, ...]:
    """Sort key: nearest is the same function in the same mode, then the same operations, then the latest."""
    graphs = hlo.distance(new.report.graph, old.report.graph) if new.report.graph and old.report.graph else 0
    a, b = new.facts, old.facts
    return a.function != b.function or a.code != b.code, a.mode != b.mode, a.made != b.made, graphs, -old.nth


# -- the rules --------------------------------------------------------------------------------------------------------


def _mode_switch(pair: FunctionComparison) -> CompileCause | None:
    differences = list(_modes(pair))
    if not differences:
        return None
    batch = "".join(f"; {line}" for line in pair.input_lines[:1])
    text = f"This line runs the model in two modes: {differences[0]}{batch}."
    return CompileCause("mode-switch", text, _ONCE_EACH, (*differences, *pair.input_lines))


def _modes(pair: FunctionComparison) -> Iterator[str]:
    new, old = pair.new.facts, pair.old.facts
    if new.mode and old.mode and new.mode != old.mode:
        yield f"{new.mode} now, {old.mode} before"
    for name, (before, now) in pair.literals.items():
        if name.rpartition(".")[2] in _FLAGS and isinstance(before, bool) and isinstance(now, bool):
            yield f"{name} is now {now}, before {before}"


def _optimizer_state(pair: FunctionComparison) -> CompileCause | None:
    """A state that the first step creates and that is an argument from then on."""
    new, old = pair.new, pair.old
    if not (new.facts.trains and old.facts.trains and pair.same_function) or pair.inputs:
        return None
    before = {one.name for one in old.inputs}
    empty = {name for name, value in old.facts.literals.items() if value is None}
    arrived = [one for one in new.inputs if one.name not in before]
    state = [one for one in arrived if any(_part_of(one.name, name) for name in empty - new.facts.literals.keys())]
    if not state or len(state) != len(arrived):
        return None
    line = f"{state[0].name} is now an argument ({_tensor(state[0])}); before, it was None and created in the step"
    return CompileCause(
        "optimizer-state",
        "The optimizer's state was created in the first step. It is now an argument, which makes a different program.",
        "Expected: the optimizer state is created in the first step. No action needed. To avoid it, create "
        "the state before the loop.",
        (line, *pair.evidence),
    )


def _part_of(name: str, whole: str) -> bool:
    return name == whole or name.startswith((f"{whole}[", f"{whole}."))


def _python_number(pair: FunctionComparison) -> CompileCause | None:
    numbers = {name: one for name, one in pair.literals.items() if _are_numbers(*one)}
    if not numbers or not pair.same_function:
        return None
    name, (before, now) = next(iter(numbers.items()))
    lines = tuple(f"{name} now {now!r}, before {before!r}" for name, (before, now) in numbers.items())
    return CompileCause(
        "python-number",
        f"A Python number is an argument of the tf.function: {name} is now {now!r}, before {before!r}; each new "
        "value is traced and compiled.",
        f"Pass it as a tensor: {name}=tf.constant({now!r}), or use the same value in every step.",
        (*lines, *pair.input_lines),
    )


def _are_numbers(before: Literal, now: Literal) -> bool:
    return isinstance(before, (int, float)) and isinstance(now, (int, float))


def _input(pair: FunctionComparison) -> CompileCause | None:
    if not pair.inputs:
        return None
    lines = pair.input_lines
    short = _short(pair)
    if short is not None:
        text = f"The last batch has {short[1]} samples instead of {short[0]}: {lines[0]}."
        return CompileCause("last-batch", text, _DROP_ARRAYS if pair.new.facts.arrays else _DROP_PIPELINE, lines)
    if all(new.shape == old.shape for new, old in pair.inputs):
        fix = "Convert it once, in the pipeline: dataset.map with tf.cast, so that every batch has the same dtype."
        return CompileCause("input-dtype", f"An input has another dtype: {lines[0]}.", fix, lines)
    return CompileCause("input-shape", f"An input has another shape: {lines[0]}.", _shape_fix(pair), lines)


def _short(pair: FunctionComparison) -> tuple[int, int] | None:
    """(full, last) if an input's first dimension changed to the size of a short last batch, or back."""
    for new, old in pair.inputs:
        if new.shape and old.shape and new.shape[1:] == old.shape[1:]:
            for full, last in pair.new.facts.short | pair.old.facts.short:
                if {old.shape[0], new.shape[0]} == {full, last}:
                    return full, last
    return None


def _shape_fix(pair: FunctionComparison) -> str:
    rows_only = all(n.shape[1:] == o.shape[1:] and n.shape[:1] != o.shape[:1] for n, o in pair.inputs if n.shape)
    return _SAME_BATCH if rows_only and all(len(n.shape) > 1 for n, _ in pair.inputs) else _PAD


def _new_function(pair: FunctionComparison) -> CompileCause | None:
    new, old = pair.new.facts, pair.old.facts
    if new.made == old.made or not pair.same_function:
        return None
    if new.keras:
        text = "Keras created a new function: model.compile was called again, or it is another model."
        fix = "Call model.compile once, before the loop, and train the same model; one compile for each model remains."
    else:
        how = "created again, or a method of another object"
        text = f"{new.function} is a new tf.function of the same Python function ({how})."
        fix = "Create the tf.function once, outside the loop (or decorate the function), and call that one."
    return CompileCause("new-code", text, fix, pair.evidence)


def _other_function(pair: FunctionComparison) -> CompileCause | None:
    """One line runs several programs."""
    if pair.same_function:
        return None
    text = f"This line runs more than one program; this one is {pair.new.facts.function or 'of another function'}."
    return CompileCause("new-code", text, "Expected once per program.", pair.evidence)


def _other_arguments(pair: FunctionComparison) -> CompileCause | None:
    new, old = pair.new, pair.old
    names = {one.name for one in new.inputs} ^ {one.name for one in old.inputs}
    if names:
        text = f"The function was called with different arguments: {', '.join(sorted(names)[:4])}."
    elif pair.literals:
        name, (before, now) = next(iter(pair.literals.items()))
        text = f"The function was called with a different Python value: {name} is now {now!r}, before {before!r}."
    else:
        return None
    fix = "Call it with the same arguments in every step, or use one function per set of arguments."
    return CompileCause("new-code", text, fix, pair.evidence)


def _other_operations(pair: FunctionComparison) -> CompileCause | None:
    if pair.change is None or pair.change.same_ops:
        return None
    text = "The operations changed between steps; the function was traced again."
    fix = "Look for a Python branch or loop that depends on the step, and see the retraces of this run."
    return CompileCause("new-code", text, fix, pair.evidence)


def _unknown(pair: FunctionComparison) -> CompileCause:
    why = "the graphs could not be compared" if pair.change is None else "none of the known causes fits"
    fix = "Compare the evidence with your code. If your code is not the cause, please report it."
    return CompileCause("unknown", f"The cause is unknown: {why}.", fix, pair.evidence)


RULES: tuple[Callable[[FunctionComparison], CompileCause | None], ...] = (
    _mode_switch,
    _optimizer_state,
    _python_number,
    _input,
    _new_function,
    _other_function,
    _other_arguments,
    _other_operations,
    _unknown,
)


# -- texts -----------------------------------------------------------------------------------------------------------


def _differs(before: Literal, now: Literal) -> bool:
    return (type(before), before) != (type(now), now) and not (before != before and now != now)  # nan is nan


def _tensor(one: Input) -> str:
    return f"{one.dtype}[{','.join(map(str, one.shape))}]"


def _input_change(new: Input, old: Input) -> str:
    return f"{new.name} now {_tensor(new)}, before {_tensor(old)}"
