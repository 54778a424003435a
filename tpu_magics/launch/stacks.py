"""Stacks for people: cells instead of temporary file names, library frames folded. Exceptions and faulthandler's dumps
become `events.Frame`s, outermost call first.
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import io
import linecache
import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import FrameType

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.runs.events import LONGEST_TEXT, Frame, cut_text, plain_text
from tpu_magics.runs.files import working_folder
from tpu_magics.runs.origin import LEFT_OUT, OWN, is_library, package_of, under

_OUTER, _INNER, _CALLERS = 20, 80, 2
# TensorFlow's stack of an op, which begins at the kernel's start.
_OP_STACK = re.compile(r"^(?:Stack trace for op definition|The op is created at): *\n(?:File .*\n)+\s*", re.MULTILINE)
_CODE_LENGTH = 200
_HALF = LONGEST_TEXT // 2 - 200  # if two texts share the limit
_LAUNCHING = tuple(f"{OWN}{os.sep}{room}{os.sep}" for room in ("launch", "magics"))
# "Stack": what faulthandler writes when it was asked for one thread only.
_THREAD = re.compile(r"^(Current thread|Thread|Stack)(?: (0x[0-9a-f]+).*)? \(most recent call first\):$")
_DUMPED = re.compile(r'^\s*File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)$')
FULL_DISK = re.compile(
    r"\[Errno (?:28|122)\]|\(os error (?:28|122)\)|^No space left on device|: No space left on device"
    r"|Disk quota exceeded|database or disk is full"
)
# torch.save to a full disk only reports that fewer bytes were written than expected (torch 2.9.0).
SHORT_WRITE = re.compile(r"inline_container\.cc.{0,40}unexpected pos|PytorchStreamWriter failed writing")
_CLOSE = 0.75  # of difflib, from 0 to 1: how much of two names is the same
_SCARCE = 64 << 20  # bytes: of less no more is free on a disk that counts as full
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


# -- stacks from Python -------------------------------------------------------------------------------------------


def from_exception(exc: BaseException, cell_names: Mapping[str, str]) -> tuple[Frame, ...]:
    """The stack of an exception, and the position of a SyntaxError; of a group, and of the first in it; at most 101
    frames: of a long stack those from the user's outermost call on, and the innermost.

    Args:
        exc: the exception, with its traceback.
        cell_names: file name of a cell's code -> "In [n]".
    """
    found = [pair for one in _with_first(exc) for pair in traceback.walk_tb(one.__traceback__)]
    frames = [_frame(frame.f_code.co_filename, line, frame.f_code.co_name, cell_names) for frame, line in found]
    if isinstance(exc, SyntaxError) and exc.filename and exc.lineno:
        frames.append(_frame(exc.filename, exc.lineno, "", cell_names, exc.text or ""))
    return _bounded(frames)


def from_frame(frame: FrameType, cell_names: Mapping[str, str]) -> tuple[Frame, ...]:
    """The stack of a thread, by its innermost frame; otherwise as `from_exception`."""
    found = list(traceback.walk_stack(frame))[::-1]
    return _bounded([_frame(one.f_code.co_filename, line, one.f_code.co_name, cell_names) for one, line in found])


def describe(exc: BaseException) -> tuple[str, str]:
    """An exception's qualified type ("ValueError", "mymodule.MyError") and its text, with the deepest cause; of a full
    disk with the path that was written to, which many libraries leave out."""
    kind, text = _described(exc)
    if isinstance(exc, SystemExit):
        return kind, _refused_arguments(exc) or text
    meant = ""
    with contextlib.suppress(Exception):  # an object's own __dir__
        meant = _meant(exc)
    if meant and "Did you mean" not in text:
        text = f"{text}. Did you mean: '{meant}'?"
    named = isinstance(exc, OSError) and exc.filename is not None
    path = "" if named or not (FULL_DISK.search(text) or SHORT_WRITE.search(text)) else _written_path(exc)
    return kind, f"{text} (writing '{path}')" if path else text


def _refused_arguments(exc: SystemExit) -> str:
    """What argparse said of a command line before it ended the program; "" for another end."""
    innermost = [frame for frame, _ in traceback.walk_tb(exc.__traceback__)][-1:]
    said = [one.f_locals.get("message") for one in innermost if one.f_globals.get("__name__") == "argparse"]
    return f"{exc.code} ({plain_text(said[0].strip())})" if said and isinstance(said[0], str) else ""


def _meant(exc: BaseException) -> str:
    """The name that was meant, as Python's own traceback ends with; "" for none."""
    name, names = getattr(exc, "name", None), set[str]()
    if not isinstance(name, str) or type(exc) not in (NameError, AttributeError):
        return ""
    if isinstance(exc, AttributeError):
        names.update(() if exc.obj is None else dir(exc.obj))
    for frame, _ in [*traceback.walk_tb(exc.__traceback__)][-1:] if isinstance(exc, NameError) else ():
        names.update(frame.f_locals, frame.f_globals, vars(builtins))
    found = difflib.get_close_matches(name, [one for one in names if isinstance(one, str)], 1, _CLOSE)
    return found[0] if found else ""


def _written_path(exc: BaseException) -> str:
    """What the innermost functions had as a path on a full disk, else as a path at all; "" for none."""
    stacks = [[frame for frame, _ in traceback.walk_tb(one.__traceback__)][::-1] for one in (exc, *_chain(exc))]
    values = (value for stack in stacks for frame in stack for value in [*frame.f_locals.values()])
    paths = [path for value in values if (path := _as_path(value))][:1000]
    return next((path for path in paths if _free(path) < _SCARCE), paths[0] if paths else "")


def _as_path(value: object) -> str:
    """The path that a path or an open file stands for, if its folder exists; else ""."""
    name = value if isinstance(value, (str, os.PathLike)) else getattr(value, "name", "") if _is_file(value) else ""
    try:
        path = os.fspath(name) if isinstance(name, (str, os.PathLike)) else ""
        return path if isinstance(path, str) and os.sep in path[:4096] and Path(path).parent.is_dir() else ""
    except (OSError, ValueError, RuntimeError):
        return ""


def _is_file(value: object) -> bool:
    return isinstance(value, io.IOBase)


def _free(path: str) -> int:
    try:
        found = os.statvfs(Path(path).parent)
    except OSError:
        return _SCARCE
    return found.f_bavail * found.f_frsize


def _described(exc: BaseException) -> tuple[str, str]:
    chain = [] if isinstance(exc, TpuMagicsError) else _chain(exc)  # our own errors include the reason
    if not chain:
        return _type_of(exc), _text_of(exc)
    text, cause = _text_of(exc, _HALF), _text_of(chain[-1], _HALF)
    before = [exc, *chain][-2]
    link = "caused by" if before.__cause__ or before is not _with_first(before)[-1] else "while handling"
    return _type_of(exc), f"{text} ({link} {_type_of(chain[-1])}: {cause})".removeprefix(" ")


def traceback_text(exc: BaseException) -> str:
    """The traceback as Python shows it, or a shorter form if a text is very long (Python takes seconds for 50 MB)."""
    texts = [(one, _text_of(one)) for one in (exc, *_chain(exc))]
    if all(len(text) < LONGEST_TEXT for _, text in texts):
        return "".join(traceback.format_exception(exc))
    parts = [f"{''.join(traceback.format_tb(one.__traceback__))}{_type_of(one)}: {text}\n" for one, text in texts]
    return "Traceback (most recent call last):\n" + "\n".join(reversed(parts))


def _with_first(exc: BaseException) -> list[BaseException]:
    """An exception and, of a group (Python 3.11), the first in it, and so on."""
    found = [exc]
    while isinstance(found[-1], getattr(builtins, "BaseExceptionGroup", ())):
        found.append(found[-1].exceptions[0])  # type: ignore[attr-defined]
    return found


def _chain(exc: BaseException) -> list[BaseException]:
    """The causes and contexts of `exc`, the nearest first; of a group, what is in it."""
    chain = _with_first(exc)
    while True:
        last = chain[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or any(cause is one for one in chain):
            return chain[1:]
        chain.append(cause)


def _type_of(exc: BaseException) -> str:
    kind = type(exc)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return module + kind.__qualname__


def _text_of(exc: BaseException, longest: int = LONGEST_TEXT) -> str:
    try:
        return _OP_STACK.sub("", plain_text(cut_text(str(exc), longest)))
    except BaseException as error:  # the user's __str__ may fail or call sys.exit; the first error is more important
        return f"(no text: {type(error).__name__} in __str__)"


def _frame(path: str, line: int | None, function: str, cell_names: Mapping[str, str], code: str = "") -> Frame:
    text = code or (linecache.getline(path, line) if line else "")
    library = path not in cell_names and is_library(path, function)
    return Frame(cell_names.get(path, path), line or 0, function, text.strip()[:_CODE_LENGTH], library)


def _bounded(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    if len(frames) <= _OUTER + _INNER:
        return tuple(frames)
    inner = len(frames) - _INNER
    first = next((number for number, frame in enumerate(frames[:inner]) if not frame.library), 0)  # of the user's code
    begin = max(0, min(first - _CALLERS, inner - _OUTER))
    end = begin + _OUTER - bool(begin)
    return (*_left_out(begin), *frames[begin:end], *_left_out(inner - end), *frames[inner:])


def _left_out(count: int) -> tuple[Frame, ...]:
    return (Frame(LEFT_OUT, count, "", library=True),) if count else ()


# -- stacks from faulthandler -------------------------------------------------------------------------------------


def from_faulthandler(text: str, cell_names: Mapping[str, str]) -> dict[str, tuple[Frame, ...]]:
    """The threads of the last dump in `text`: id to stack, the thread that was running first."""
    threads: dict[str, list[Frame]] = {}
    current = stack = None
    for line in text.splitlines():
        header = _THREAD.match(line.strip())
        if header:
            name = header[2] or header[1]
            if name in threads:  # the same thread again: the next dump begins
                threads, current = {}, None
            current = name if header[1] != "Thread" else current
            stack = threads.setdefault(name, [])
        elif stack is not None and (frame := _dumped_frame(line, cell_names)):
            stack.insert(0, frame)
    order = sorted(threads, key=lambda name: name != current)
    return {name: tuple(threads[name]) for name in order}


def _dumped_frame(line: str, cell_names: Mapping[str, str]) -> Frame | None:
    match = _DUMPED.match(line)
    if not match:
        return None
    number = int(match[2]) if match[2].isdigit() else None
    return _frame(_unescaped(match[1] or "???"), number, _unescaped(match[3]), cell_names)


def _unescaped(text: str) -> str:
    """faulthandler writes ASCII only; other characters are \\xNN, \\uNNNN, \\UNNNNNNNN."""
    return _ESCAPED.sub(lambda m: chr(int(m[1] or m[2] or m[3], 16)), text)


def training_thread(threads: Mapping[str, Sequence[Frame]]) -> tuple[Frame, ...]:
    """The stack that runs the user's training; () if none does.

    A forked worker's main thread still has the notebook's stack down to our fork; the user's frames there only started
    the run. The running thread comes first, then a thread that we started, then any other with user code.
    """
    own = [tuple(stack) for stack in threads.values() if last_user_frame(stack) and not _launching(stack)]
    if not own:
        return ()
    running = tuple(next(iter(threads.values())))
    if running in own:
        return running
    return next((stack for stack in own if _launched(stack)), own[0])


def _launched(stack: Sequence[Frame]) -> bool:
    """Whether we called some of the user code."""
    return any(_launches(frame) and last_user_frame(stack[at:]) for at, frame in enumerate(stack))


def _launching(stack: Sequence[Frame]) -> bool:
    """Whether all user code in the stack waits for a run that it started."""
    return not _launched(stack) and any(_launches(frame) for frame in stack)


def _launches(frame: Frame) -> bool:
    """A frame of ours, except those that user code calls inside a worker (observers, `tpu_magics.log`)."""
    return frame.library and frame.path.startswith(_LAUNCHING)


# -- stacks as text -----------------------------------------------------------------------------------------------


def last_user_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of user code: the line to point at."""
    return next((frame for frame in reversed(frames) if not frame.library), None)


def libraries_below(frames: Sequence[Frame]) -> list[str]:
    """The libraries that the innermost user line called, outermost first. A function of ours around one of theirs
    (`Tensor.to`, which is in C) is not named, unless it raised the error itself."""
    below: list[Frame] = []
    for frame in frames:
        below = [*below, frame] if frame.library else []
    raised_by_us = bool(below) and below[-1].code.startswith("raise ")
    return _packages([frame for frame in below if raised_by_us or not frame.path.startswith(f"{OWN}{os.sep}")])


def place(frame: Frame) -> str:
    """`In [12], line 14, in training_function`, files relative to the working directory."""
    here = str(working_folder())
    path = os.path.relpath(frame.path, here) if under(frame.path, here) else frame.path
    function = f", in {frame.function}" if frame.function else ""
    return f"{path}, line {frame.line or '?'}{function}"


def fold(frames: Sequence[Frame]) -> list[str]:
    """A stack as lines: user frames with cell, line and code; consecutive library frames as one line."""
    lines: list[str] = []
    for library, group in groupby(frames, key=lambda frame: frame.library):
        run = list(group)
        lines.extend(_folded(run) if library else _repeated(_render(frame) for frame in run))
    return lines


def _render(frame: Frame) -> str:
    return f"{place(frame)}: {frame.code}" if frame.code else place(frame)


def _folded(run: Sequence[Frame]) -> list[str]:
    count = sum(frame.line if frame.path == LEFT_OUT else 1 for frame in run)
    packages = _packages(run)
    shown = "/".join([*packages[:4], "..."] if len(packages) > 4 else packages)
    return [f"... {plural(count, 'frame', '')}{' in ' if shown else ''}{shown} ..."]


def _packages(run: Iterable[Frame]) -> list[str]:
    return list(dict.fromkeys(name for name in (package_of(frame.path, frame.function) for frame in run) if name))


def _repeated(lines: Iterable[str]) -> Iterable[str]:
    """Repeated lines (recursion) shown once, with the count."""
    for line, same in groupby(lines):
        count = sum(1 for _ in same)
        yield line if count == 1 else f"{line} ({count} times)"
