"""Why torch.compile compiled a function again: the guard of Dynamo that failed, in our causes.

torch 2.15.0 (torch/_dynamo/guards.py, torch/csrc/dynamo/guards.cpp). A failed guard is text: "0/0: tensor 'x' size
mismatch at index 0. expected 4, actual 5", "0/1: k == 1   # line of the code  # file:line in function".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tpu_magics.backends.observe.compiles import (
    CompileCause,
    CompileComparison,
    CompileEvidence,
    InputFixes,
    first_cause,
    graph_distance,
    input_change,
    unknown,
)

_FIXES = InputFixes(
    last_batch="Use drop_last=True in the DataLoader. To keep all samples, pad the last batch and give padded rows "
    "weight 0.",
    dtype="Convert it once, in the dataset, so that every batch has the same dtype.",
    shape="Pad to a multiple (pad_to_multiple_of=64). TorchTPU's own way, torch._dynamo.mark_dynamic(tensor, 1, "
    "min=..., max=...), does not compile on XLA:CPU, and was not tried on a TPU.",
)
_MODES = "Expected once per mode. Use the training batch size in the other modes."
_NUMBER = (
    "Pass it as a tensor on the device, or keep it constant. To change a learning rate, keep it in the optimizer as a "
    "tensor: lr=torch.tensor(0.1)."
)
_CONTAINER = "Keep the number of its elements: preallocate it, or keep numbers (loss.item()) instead of tensors."
_OTHER = "Define functions, modules and options that the compiled function uses once, before the loop."

_PREFIX = re.compile(r"^\d+/\d+: ")
_TENSOR = re.compile(r"tensor '(?P<name>.+?)' (?P<what>size|stride|rank|dtype|device|requires_grad) mismatch")
_SIZES = re.compile(r"size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_LENGTH = re.compile(r"\blen\((.+?)\) == (\d+)|expected (\d+) (?:elements|items)|length mismatch|size of container")
_NUMBERS = re.compile(r"^(?P<name>[\w.\[\]'\"()]+) == (?P<value>-?[\d.]+(?:e[-+]?\d+)?|True|False)\b")
_STATE = re.compile(r"GLOBAL_STATE changed: ?(?P<what>.*)|grad_mode|autocast|inference_mode")
_TRAINING = re.compile(r"\.training\b")
_IDENTITY = re.compile(r"___check_(?:obj_id|type_id)|__code__|\bis\b|type mismatch")


@dataclass(frozen=True)
class TpuCompile(CompileEvidence):
    """One compile by torch.compile. `guard`: the guard that failed, as Dynamo words it ("" for a first compile);
    `function`: what was compiled; `backward`: of its backward pass; `series`: the compiles that it is one of: one line
    can call several functions, and their backward passes."""

    guard: str = ""
    function: str = ""
    backward: bool = False
    series: Hashable = None

    @property
    def key(self) -> Hashable:
        return self.series


def explain(new: TpuCompile, old: TpuCompile) -> CompileCause:
    """The cause of `new`, compared with `old`."""
    return first_cause(RULES, CompileComparison(new, old))


def distance(new: TpuCompile, old: TpuCompile) -> tuple[int, ...]:
    """Sort key: nearest is the same function and pass, then the same operations, then the latest."""
    other = new.function != old.function or new.backward != old.backward
    return int(other), graph_distance(new, old), -old.nth


def guard_text(guard: str) -> str:
    """The first line of a failed guard, without its number and without the line of the code."""
    return _PREFIX.sub("", guard.partition("\n")[0]).partition("  #")[0].strip()


Pair = CompileComparison[TpuCompile]


def _mode(pair: Pair) -> CompileCause | None:
    text = guard_text(pair.new.guard)
    state, training = _STATE.search(text), _TRAINING.search(text)
    if state is None and training is None and "requires_grad mismatch" not in text:
        return None
    what = "the model in training and evaluation mode" if training else f"in two modes ({text})"
    return pair.cause("mode-switch", f"The function runs {what}.", _MODES, text)


def _input(pair: Pair) -> CompileCause | None:
    found = input_change(pair, _FIXES)
    tensor = _TENSOR.search(guard_text(pair.new.guard))
    if found is not None or tensor is None or tensor["what"] in ("requires_grad", "device"):
        return found
    text = guard_text(pair.new.guard)
    if tensor["what"] == "dtype":
        return pair.cause("input-dtype", f"The dtype of an input changed: {text}.", _FIXES.dtype)
    sizes = _SIZES.search(text)
    if sizes and sizes[1] == "0" and {int(sizes[2]), int(sizes[3])} in [set(one) for one in pair.new.short]:
        return pair.cause(
            "last-batch",
            f"The last batch has {min(int(sizes[2]), int(sizes[3]))} samples instead of "
            f"{max(int(sizes[2]), int(sizes[3]))}: {text}.",
            _FIXES.last_batch,
        )
    return pair.cause("input-shape", f"The shape of an input changed: {text}.", _FIXES.shape)


def _length(pair: Pair) -> CompileCause | None:
    text = guard_text(pair.new.guard)
    if not _LENGTH.search(text):
        return None
    return pair.cause("live-tensors", f"A list, tuple or dict has another length: before, {text}.", _CONTAINER)


def _number(pair: Pair) -> CompileCause | None:
    text = guard_text(pair.new.guard)
    found = _NUMBERS.match(text)
    if found is None:
        return None
    kind = "value" if found["value"] in ("True", "False") else "number"
    text = f"`{found['name']}` is a Python {kind} and part of the graph. It was {found['value']} before."
    return pair.cause("python-number", text, _NUMBER)


def _code(pair: Pair) -> CompileCause | None:
    text = guard_text(pair.new.guard)
    if not _IDENTITY.search(text) and pair.new.function == pair.old.function:
        return None
    return pair.cause("new-code", f"Another object or function is used: {text or f'`{pair.new.function}`'}.", _OTHER)


def _guard(pair: Pair) -> CompileCause | None:
    text = guard_text(pair.new.guard)
    if not text:
        return None
    return pair.cause("unknown", f"A guard of torch.compile failed: {text}.", "Keep what the guard names constant.")


RULES: tuple[Callable[[Pair], CompileCause | None], ...] = (_mode, _input, _length, _number, _code, _guard, unknown)
