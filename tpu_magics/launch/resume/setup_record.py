"""What a training was set up with: the code of its functions, and the plain values that they begin with."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from types import FrameType, FunctionType
from typing import Any

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.launch.hoist.functions import function_source
from tpu_magics.launch.object_graph import names_in
from tpu_magics.launch.resume import locals as local_names

_LONGEST = 200  # characters of a value that is shown
_MOST_CODE = 100_000  # characters
_PLAIN = (int, float, bool, str, type(None))
SHOWN = 12


def setup_record(
    frames: Sequence[FrameType], functions: Iterable[FunctionType], statements: str = ""
) -> dict[str, dict[str, str]]:
    """`values`: by function and name; `code`: by function; `statements`: of a cell."""
    functions = list({id(one): one for one in functions}.values())
    values = {}
    for frame in frames:
        name = frame.f_code.co_name
        values.update({f"{name}: {key}": text for key, text in _plain(local_names.all_of(frame))})
    for one in functions:
        read = set(names_in(one.__code__))
        values.update({key: text for key, text in _plain(one.__globals__) if key in read})
    own = {"the cell": statements} if statements else {}
    return {"values": values, "code": {**dict(_sources(functions)), **own}}


def _plain(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in names.items():
        if not name.startswith("_") and _is_plain(value) and len(repr(value)) <= _LONGEST:
            yield name, repr(value)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _sources(functions: Iterable[FunctionType]) -> Iterator[tuple[str, str]]:
    for one in functions:
        source = function_source(one)
        if source is not None and len(text := ast.unparse(source.node)) <= _MOST_CODE:
            yield one.__qualname__, text


def differences(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One line for each: values first, then code. Comments and the layout of code do not count."""
    found = []
    for name in sorted(before["values"].keys() & now["values"].keys()):
        if before["values"][name] != now["values"][name]:
            found.append(f"{name}: {before['values'][name]} -> {now['values'][name]}")
    for name in sorted(before["code"].keys() & now["code"].keys()):
        found += [f"{name}: {line}" for line in _lines(before["code"][name], now["code"][name])]
    return found


def _lines(before: str, now: str) -> Iterator[str]:
    old, new = before.splitlines(), now.splitlines()
    for change, first, end, begin, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if change != "equal":
            left, right = (" / ".join(line.strip() for line in part) for part in (old[first:end], new[begin:last]))
            yield f"{left[:_LONGEST] or '(nothing)'} -> {right[:_LONGEST] or '(removed)'}"


def refuse(found: Sequence[str]) -> None:
    """Raise TpuMagicsError for a training that was changed since its checkpoint."""
    if not found:
        return
    more = [f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    raise TpuMagicsError(
        "The training was changed since its checkpoint: it would not go on as the unbroken run.",
        f"{plural(len(found), 'difference', '')} (at the checkpoint -> now).",
        "Undo them, or go on with what is here now: --resume --force. Without --resume it starts from the beginning; a "
        "training of its own gets a name of its own: --run-name NAME.",
        [*found[:SHOWN], *more],
    )
