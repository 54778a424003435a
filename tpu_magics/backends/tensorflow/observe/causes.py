"""Why a line compiled again: rules that compare a compile with the nearest earlier one of its site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tpu_magics.backends.observe.compiles import (
    CompileCause,
    CompileComparison,
    InputFixes,
    first_cause,
    graph_distance,
    input_change,
    mode_switch,
    tensor_text,
    unknown,
)
from tpu_magics.backends.tensorflow.observe.evidence import FunctionCompile
from tpu_magics.backends.tensorflow.observe.traced_functions import Literal

_FLAGS = ("training", "is_training", "train", "trainable", "inference")
_ONCE_EACH = "Expected once per mode. Use the training batch size in the other modes."
_DROP_ARRAYS = "Use a batch_size that divides the number of samples, or a tf.data pipeline with drop_remainder=True."
_DROP_PIPELINE = (
    "Use batch(..., drop_remainder=True). To keep all samples, pad the last batch and give padded rows weight 0."
)
_SAME_BATCH = "Use the same batch size in every step: batch(..., drop_remainder=True), also for evaluation."
_CAST = "Convert it once, in the pipeline: dataset.map with tf.cast, so that every batch has the same dtype."
_PAD = (
    "Pad to a multiple: padded_batch(..., padded_shapes=..., drop_remainder=True), or pad_to_multiple_of=64 in "
    "the tokenizer. An input_signature with None saves retraces, not compiles."
)


@dataclass
class FunctionComparison(CompileComparison[FunctionCompile]):
    """A compile and the nearest earlier one of its site. `literals`: Python values that changed, (old, new) by name."""

    literals: dict[str, tuple[Literal, Literal]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        now, before = self.new.facts.literals, self.old.facts.literals
        pairs = {name: (before[name], value) for name, value in now.items() if name in before}
        self.literals = {name: pair for name, pair in pairs.items() if _differs(*pair)}

    @property
    def same_function(self) -> bool:
        """Whether both were made from the same Python function."""
        return self.new.facts.code == self.old.facts.code and self.new.facts.function == self.old.facts.function


def explain(new: FunctionCompile, old: FunctionCompile) -> CompileCause:
    """The cause of `new`, compared with `old`."""
    return first_cause(RULES, FunctionComparison(new, old))


def distance(new: FunctionCompile, old: FunctionCompile) -> tuple[int, ...]:
    """Sort key: nearest is the same function in the same mode, then the same operations, then the latest."""
    a, b = new.facts, old.facts
    functions = a.function != b.function or a.code != b.code, a.mode != b.mode, a.number != b.number
    return *functions, graph_distance(new, old), -old.nth


# -- the rules --------------------------------------------------------------------------------------------------------


def _mode_switch(pair: FunctionComparison) -> CompileCause | None:
    return mode_switch(pair, "model", tuple(_modes(pair)), _ONCE_EACH)


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
    line = f"{state[0].name} is now an argument ({tensor_text(state[0])}); before, it was None and created in the step"
    return pair.cause(
        "optimizer-state",
        "The optimizer's state was created in the first step. It is now an argument, which makes a different program.",
        "Expected: the optimizer state is created in the first step. No action needed. To avoid it, create "
        "the state before the loop.",
        line,
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
    last = _DROP_ARRAYS if pair.new.facts.arrays else _DROP_PIPELINE
    same_batch = pair.only_batch_changed and all(len(new.shape) > 1 for new, _ in pair.inputs)
    return input_change(pair, InputFixes(last, _CAST, _SAME_BATCH if same_batch else _PAD))


def _new_function(pair: FunctionComparison) -> CompileCause | None:
    new, old = pair.new.facts, pair.old.facts
    if new.number == old.number or not pair.same_function:
        return None
    if new.keras:
        text = "Keras created a new function: model.compile was called again, or it is another model."
        fix = "Call model.compile once, before the loop, and train the same model; one compile for each model remains."
    else:
        how = "created again, or a method of another object"
        text = f"{new.function} is a new tf.function of the same Python function ({how})."
        fix = "Create the tf.function once, outside the loop (or decorate the function), and call that one."
    return pair.cause("new-code", text, fix)


def _other_function(pair: FunctionComparison) -> CompileCause | None:
    """One line runs several programs."""
    if pair.same_function:
        return None
    text = f"This line runs more than one program; this one is {pair.new.facts.function or 'of another function'}."
    return replace(pair.cause("new-code", text, "Expected once per program."), normal=True)


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
    return pair.cause("new-code", text, fix)


def _other_operations(pair: FunctionComparison) -> CompileCause | None:
    if pair.change is None or pair.change.same_ops:
        return None
    text = "The operations changed between steps; the function was traced again."
    fix = "Look for a Python branch or loop that depends on the step, and see the retraces of this run."
    return pair.cause("new-code", text, fix)


RULES: tuple[Callable[[FunctionComparison], CompileCause | None], ...] = (
    _mode_switch,
    _optimizer_state,
    _python_number,
    _input,
    _new_function,
    _other_function,
    _other_arguments,
    _other_operations,
    unknown,
)


def _differs(before: Literal, now: Literal) -> bool:
    return (type(before), before) != (type(now), now) and not (before != before and now != now)  # nan is nan
