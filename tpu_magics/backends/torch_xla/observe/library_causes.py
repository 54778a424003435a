"""Causes of graphs that a library runs between the user's line and the compile."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_magics.backends.observe.compiles import CompileCause
from tpu_magics.backends.torch_xla.observe.evidence import TorchComparison
from tpu_magics.backends.torch_xla.observe.parts import short_path

Functions = Sequence[tuple[str, str]]  # with their files
# Files whose functions wrap others.
_DECORATORS = ("/typing_extensions.py", "/functools.py", "/contextlib.py", "/_contextlib.py")


def collective_alone(pair: TorchComparison) -> CompileCause | None:
    """In a rehearsal: a line with several collectives, one of which gathers values that existed already."""
    if pair.new.report.pieces and pair.old.report.pieces:
        return None
    return CompileCause(
        "new-code",
        "This line runs several graphs. One of them is only a collective, with no computation before it.",
        "No action needed: each graph compiles once. One call that gathers all values would need only one graph.",
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
        "(Trainer: a larger logging_steps; transformers models: no attention_mask if nothing is padded).",
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
    """The same user's line, but a library runs the graph from another function, for the first time."""
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
    return pair.new_code(f"This line runs several graphs. This one is run by {by}", "Expected once for each graph")


def new_functions(new: Functions, old: Functions) -> Functions:
    """The functions that only the new one has, nearest to the user's line first; decorators last: `wrapper` says
    nothing."""
    return sorted((one for one in reversed(new) if one not in old), key=lambda one: one[0].endswith(_DECORATORS))


def before_training(pair: TorchComparison) -> CompileCause | None:
    """The earlier graph was not a step: a library's setup before the first one."""
    new, old = pair.new.facts, pair.old.facts
    if not pair.other_ops or not new.backward or old.backward or old.stepped or pair.old.inputs:
        return None
    what = pair.new.part.work or "the first step"
    return pair.part_cause(f"The earlier graph of this line ran before the first step. This one is {what}")
