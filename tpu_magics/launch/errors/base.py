"""What all explainers share: `Explanation`, the texts of a dead worker that count as evidence, and formatting."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.launch import stacks
from tpu_magics.runs.events import Frame, plain_text

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

UNCHANGED = "The notebook's models are unchanged."

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_XLA_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_GLOO = re.compile(r"^\[[^\]]+\.cc:\d+\] | \[[\d.:a-f]+\]:\d+", re.MULTILINE)
_ONE_LINE = 300
# XLA's and torch's (with TORCH_SHOW_CPP_STACKTRACES=1): it names no line of Python; %tpu_logs has it.
_NATIVE_STACK = re.compile(
    r"\*\*\* Begin stack trace \*\*\*.*?(?:\*\*\* End stack trace \*\*\*|\Z)"
    r"|^(?:Exception raised from |frame #\d+: |(?:C\+\+ )?CapturedTraceback:)[^\n]*$|^#\d+ \S+ from \S+:\d+$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Explanation:
    """What happened, why, and what to do next; `details` are lines that belong below, before the stack."""

    what: str
    why: str = ""
    todo: str = ""
    details: tuple[str, ...] = ()


Explainer = Callable[["Failure", "WorkerOutcome"], "Explanation | None"]


# -- evidence -----------------------------------------------------------------------------------------------------


def raised(outcome: WorkerOutcome) -> bool:
    """Whether the worker ended with a Python exception that it could still report."""
    return outcome.end is not None and outcome.end.status == "failed"


def error_type(outcome: WorkerOutcome) -> str:
    """The exception's type without its module: "ValueError"; "" where there is none."""
    return outcome.end.error_type.rpartition(".")[2] if outcome.end and raised(outcome) else ""


def error_text(outcome: WorkerOutcome) -> str:
    """The exception's text; "" where there is none."""
    return plain(outcome.end.error_text).strip() if outcome.end and raised(outcome) else ""


def evidence(outcome: WorkerOutcome) -> str:
    """The text that shows why a worker died: its exception, or the end of its output if there is none.

    The output of a worker that raised is ignored: a harmless message of a library must not be taken for the cause.
    """
    return error_text(outcome) if raised(outcome) else plain(outcome.log_tail)


_STARTING = re.compile(r"initializ|StatusOr|libtpu|PJRT|UNAVAILABLE|No (?:TPU|devices)", re.IGNORECASE)


def device_evidence(outcome: WorkerOutcome) -> str:
    """The text that counts as evidence; if the exception only says that the device did not start, with the output."""
    text = evidence(outcome)
    return f"{text}\n{plain(outcome.log_tail)}" if raised(outcome) and _STARTING.search(text) else text


def stack_of(failure: Failure, outcome: WorkerOutcome) -> tuple[Frame, ...]:
    """A worker's stack from the first frame of user code: of its exception, or of its last dump."""
    end = outcome.end
    found = end.frames if end and end.frames else ()
    stack = found or stacks.training_thread(stacks.from_faulthandler(outcome.stack, failure.cell_names))
    first = next((at for at, frame in enumerate(stack) if not frame.library), 0)
    return tuple(stack[first:])


def user_line(failure: Failure, outcome: WorkerOutcome) -> Frame | None:
    """The line of user code that the worker was executing."""
    return stacks.last_user_frame(stack_of(failure, outcome))


def raised_where(failure: Failure, outcome: WorkerOutcome) -> str:
    """`It was raised at ..., inside torch.`; "" if no line of the user's is known."""
    stack = stack_of(failure, outcome)
    line = stacks.last_user_frame(stack)
    if line is None:
        return ""
    called = stacks.libraries_below(stack)
    inside = f", inside {'/'.join(called)}" if called else ""
    return f"It was raised{at_line(line)}{inside}."


def rest(text: str) -> tuple[str, ...]:
    """The lines of a long text after the first, at most 20, without the stack of C++ functions that libraries add."""
    kept = _NATIVE_STACK.sub("\n", text)
    lines = [line[:400] for line in kept.strip().splitlines() if line.strip()][1:]
    return (*lines[:20], *([f"... {len(lines) - 20} more lines ..."] if len(lines) > 20 else []))


# -- text ---------------------------------------------------------------------------------------------------------


plain = functools.lru_cache(maxsize=16)(plain_text)  # each explainer asks for the same few


def one_line(text: str, length: int = _ONE_LINE) -> str:
    """The first line that is not empty, cut if it is very long."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= length else f"{first[:length]}..."


def without_addresses(text: str) -> str:
    """A collective's message without the source line and the peer's address that gloo adds."""
    return _GLOO.sub("", text)


def line_with(pattern: str | re.Pattern[str], text: str) -> str:
    """The last line that matches, cut if it is very long; "" if none does."""
    lines = [line for line in text.splitlines() if re.search(pattern, line)]
    return one_line(lines[-1]) if lines else ""


def size(count: float) -> str:
    """Bytes as text: `18.0 GiB`, `512 MiB`."""
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 1 if unit >= 3 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def xla_bytes(text: str) -> float:
    """Bytes from XLA's notation: `15.75G` is 15.75 GiB."""
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)i?B?", text).groups()  # type: ignore[union-attr]
    return float(number) * _XLA_UNITS[unit]


def precise(count: float) -> str:
    """Device memory as text, with XLA's precision: `15.75 GiB`."""
    return f"{count / 2**30:.2f} GiB" if abs(count) >= 2**30 else f"{count / 2**20:.2f} MiB"


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 200` if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def at_line(frame: Frame | None) -> str:
    """` at `loss.backward()` (In [12], line 14, in training_function)`, with a leading space; "" for None."""
    if frame is None:
        return ""
    return f" at `{frame.code}` ({stacks.place(frame)})" if frame.code else f" at {stacks.place(frame)}"


def at(failure: Failure, outcome: WorkerOutcome) -> str:
    """`at_line` of the line of user code that the worker was executing."""
    return at_line(user_line(failure, outcome))


def ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 5`, `ranks 0-6`."""
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def with_versions(failure: Failure, *names: str) -> str:
    """`torch 2.9.0, torch_xla 2.8.0`, of the packages whose version is known."""
    known = {name.replace("-", "_"): version for name, version in failure.versions.items()}
    return ", ".join(f"{name} {known[name]}" for name in names if known.get(name))
