"""Exceptions of the training function: one function for each known error, and last, any other exception."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch import frames
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation
from tpu_magics.runs import origin

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_INITIALIZED = re.compile(r"Runtime is already initialized|`Accelerator` should only be initialized inside")
_LOOKUP = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")
_INPUT_TYPES = ("NoInput", "StdinNotImplementedError", "BdbQuit")  # NoInput: see launch/streams.py
_DEVICE = re.compile(
    r"Expected XLA tensor\. Got: (?P<expected>\S+)"
    r"|is not an XLA tensor|the indexed tensor must be an XLA tensor|Input tensor is not an XLA tensor"
    r"|can't convert (?P<numpy>xla:\d+) device type tensor to numpy"
    r"|is on (?:device )?cpu\b.{0,200}\bxla|found at least two devices, (?P<two>\S+ and \S+?)[!,.]",
    re.IGNORECASE | re.DOTALL,
)
_OWN_TYPES = ("TpuMagicsError", "TrainingFailed", "TrainingInterrupted")
_DATALOADER = re.compile(r"Caught (\w+) in DataLoader worker process (\d+)\.")


# -- known errors -------------------------------------------------------------------------------------------------


def system_exit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """sys.exit() or exit() in the function."""
    if base.error_type(outcome) != "SystemExit":
        return None
    return Explanation(
        f"Rank {outcome.rank} called sys.exit({_without_cause(base.error_text(outcome))}).",
        f"It happened{base.at(failure, outcome)}, and ends the worker before it has a result.",
        "End the function with `return`, or raise an exception that names the problem.",
    )


def _without_cause(text: str) -> str:
    """The text without the cause that frames.describe() appended."""
    return re.split(r" \((?:caused by|while handling) ", base.one_line(text))[0]


def asked_for_input(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """input(), getpass() or a debugger in a worker."""
    text, kind = base.error_text(outcome), base.error_type(outcome)
    if kind not in _INPUT_TYPES and not (kind == "EOFError" and "EOF when reading a line" in text):
        return None
    named = re.match(r"(\S+(?: \S+)?) cannot be used in a worker", text)
    what = f"called {named[1]}" if named else "stopped in pdb" if kind == "BdbQuit" else "requested input"
    return Explanation(
        f"Rank {outcome.rank} {what}{base.at(failure, outcome)}.",
        "A worker is a separate process and cannot read input from the notebook.",
        "Ask for the input before the run and pass it as an argument: %%tpu_train answer. To debug, call the function "
        "in the notebook with small inputs on the CPU, or print values and read %tpu_logs.",
    )


def already_initialized(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A second launch inside the worker, or the device was used before it."""
    if not _INITIALIZED.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} started processes although the XLA runtime is already initialized in it"
        f"{base.at(failure, outcome)}.",
        "The function used the device (torch_xla.device(), an Accelerator, accelerate's set_seed) and then called "
        "xmp.spawn, torch_xla.launch or notebook_launcher.",
        "Remove that call: %%tpu_train starts the workers. If the notebook itself used the device, restart the kernel, "
        "run %tpu_init first, and use the device only in the function.",
    )


def not_in_main(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A spawned process looks for a function that exists only in the notebook."""
    match = _LOOKUP.search(base.error_text(outcome))
    if not match:
        return None
    name = match[1]
    return Explanation(
        f"Rank {outcome.rank} started a process that cannot find `{name}`.",
        f'`{name}` is defined in the notebook. A process started with "spawn", or a pickle loaded in another process, '
        "searches for it in a module file.",
        f"Train it with `%tpu_train {name}` instead of starting processes in the function, start them with "
        f'start_method="fork", or move `{name}` into a .py file and import it.',
    )


def autograd_threads(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """pytorch/xla#4174: autograd started its device threads before the XLA device existed."""
    text = base.evidence(outcome)
    if "device_ready_queues_" not in text or "INTERNAL ASSERT" not in text:
        return None
    return Explanation(
        f"Rank {outcome.rank} could not run backward() on the device: autograd has no thread for it.",
        "autograd starts its threads once, at the first backward() of a process, for the devices that exist then. Here "
        "a backward() on the CPU ran first, in the notebook or at the top of the function.",
        "Restart the kernel, run %tpu_init first, and call backward() in the notebook only after training.",
    )


def half_precision(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """fp16 on a device that only has bf16."""
    if "fp16 mixed precision requires" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} requested fp16 mixed precision, which a TPU does not support.",
        base.one_line(base.error_text(outcome)),
        'Use bf16, which needs no loss scaling: Accelerator(mixed_precision="bf16"), TrainingArguments(bf16=True) or '
        "%%tpu_train --precision bf16.",
    )


def wrong_device(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A tensor on the CPU is used with one on the XLA device."""
    match = _DEVICE.search(base.error_text(outcome))
    if not match or (match["two"] and "xla" not in match["two"]):
        return None
    line = base.at(failure, outcome)
    if match["numpy"]:
        return Explanation(
            f"Rank {outcome.rank} tried to convert a tensor on {match['numpy']} to a NumPy array{line}.",
            "NumPy reads host memory only.",
            "Copy it to the host first (this waits for the device): `tensor.detach().cpu().numpy()`.",
        )
    said = base.one_line(base.error_text(outcome)).rstrip(".!")
    kind = f" (a {match['expected']} is a tensor on the CPU)" if match["expected"] else ""
    return Explanation(
        f"Rank {outcome.rank} mixed a tensor on the CPU with one on the XLA device{line}.",
        f"All tensors of an operation must be on the same device. PyTorch reported: {said}{kind}.",
        "Move the inputs and the model to the same device before that line: `device = torch_xla.device()`, "
        "`model = model.to(device)`, `x = x.to(device)`. With Accelerate, pass model, optimizer and loaders through "
        "`accelerator.prepare(...)`, and create new tensors with `device=accelerator.device`.",
    )


# -- any exception ------------------------------------------------------------------------------------------------


def our_own(_failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An error of tpu_magics, raised in the worker: its text is complete."""
    if base.error_type(outcome) not in _OWN_TYPES:
        return None
    text, _, details = base.error_text(outcome).partition("\n\n")
    head, _, todo = text.partition("\nWhat to do: ")
    what, _, why = head.partition("\nWhy: ")
    return Explanation(f"Rank {outcome.rank}: {what}", why, todo, tuple(details.splitlines()))


def in_dataloader(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An exception in a DataLoader worker process, which torch passes on as text."""
    text = base.error_text(outcome)
    match = _DATALOADER.search(text)
    if not match:
        return None
    said = base.line_with(rf"^(?:\w+\.)*{match[1]}\b", text) or match[1]
    return Explanation(
        f"Rank {outcome.rank}: a DataLoader worker raised {said}",
        _raised_at(text, failure),
        f"Fix it and run the cell again. {base.UNCHANGED} With num_workers=0 you see the full stack.",
    )


def _raised_at(text: str, failure: Failure) -> str:
    """The innermost line of user code in a traceback that is text."""
    frames = re.findall(r'^\s*File "(.+)", line (\d+), in (\S+)\n\s*(.*)$', text, re.MULTILINE)
    own = [row for row in frames if row[0] in failure.cell_names or not origin.is_library(row[0])]
    if not own:
        return "It was raised while loading the data."
    path, line, function, code = own[-1]
    return f"It was raised at `{code.strip()}` ({failure.cell_names.get(path, path)}, line {line}, in {function})."


def exception(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """Any other Python exception."""
    if not base.raised(outcome):
        return None
    text = base.error_text(outcome)
    kind = base.error_type(outcome) or "an exception"
    said = f"{kind}: {base.one_line(text)}" if text else kind
    return Explanation(
        f"Rank {outcome.rank} raised {said}",
        _reason(failure, outcome),
        f"Fix it and run the cell again. {base.UNCHANGED}",
        _rest(text),
    )


def _reason(failure: Failure, outcome: WorkerOutcome) -> str:
    stack = base.stack_of(failure, outcome)
    line = frames.last_user_frame(stack)
    if line is None:
        return ""
    called = frames.libraries_below(stack)
    inside = f", inside {'/'.join(called)}" if called else ""
    return f"It was raised{base.at_line(line)}{inside}."


def _rest(text: str) -> tuple[str, ...]:
    """The lines of a long text after the first, at most 20."""
    lines = [line[:400] for line in text.strip().splitlines() if line.strip()][1:]
    return (*lines[:20], *([f"... {len(lines) - 20} more lines ..."] if len(lines) > 20 else []))


EXPLAINERS = (
    our_own,
    system_exit,
    asked_for_input,
    already_initialized,
    not_in_main,
    autograd_threads,
    half_precision,
    wrong_device,
    in_dataloader,
)
LAST = (exception,)
