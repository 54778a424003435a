"""Makes labextension/src/types.ts from the dataclasses that travel to and from the JupyterLab extension.

Each becomes an interface, and a row of `FORMS`, by which the extension checks what arrives: nothing is written twice.

Usage: python scripts/typescript.py
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tpu_magics.panel import messages, page, protocol, requests  # noqa: E402

FILE = ROOT / "labextension" / "src" / "types.ts"
HEAD = """\
// The messages between kernel and front end, and the page of a run.
//
// Made by scripts/typescript.py from runs/events.py (Site) and from page.py, protocol.py, messages.py and requests.py
// in tpu_magics/panel, where each field is explained. Do not edit it. null means unknown, never zero.
"""
NUM = """\
/** JSON has no such numbers: "nan", "inf" and "-inf" stand for them. */
export type Num = number | 'nan' | 'inf' | '-inf';"""
CONSTANTS = ("PROTOCOL", "TARGET", "VERSION", "RECORD_VERSION", "MIME_TYPE")
SIMPLE = {str: "string", bool: "boolean", int: "number", float: "Num", Any: "unknown"}
# Fields that are JSON already in Python.
WRITTEN = {("RunMessage", "record"): page.Page}
WIDTH = 100  # of prettier's lines


def main() -> None:
    FILE.write_text(source())


def source() -> str:
    """The whole file, as prettier would write it."""
    kinds = travelling()
    messages_ = [kind for kind in kinds if kind.__name__.endswith("Message")]
    asked = [kind for kind in kinds if kind.__name__.endswith("Request")]
    parts = [
        HEAD.rstrip("\n"),
        "\n".join(f"export const {name} = {_literal(getattr(protocol, name))};" for name in CONSTANTS),
        NUM,
        *(_union(name, map(_literal, typing.get_args(alias))) for name, alias in ALIASES.items()),
        *map(_interface, kinds),
        _union("KernelMessage", (kind.__name__ for kind in messages_)),
        f"/** Each is sent with the protocol, its version and a `request` of its own. */\n"
        f"{_union('FrontEndRequest', (kind.__name__ for kind in asked))}",
        _table("The words of a field that has few.", "WORDS", map(_words, ALIASES.items())),
        _table("How each field is checked as it arrives (checks.ts).", "FORMS", map(_form, _arriving(kinds))),
        _table("The class of each message.", "MESSAGES", (f"  {kind.type}: '{kind.__name__}'" for kind in messages_)),
    ]
    return "\n\n".join(parts) + "\n"


def travelling() -> list[type[Any]]:
    """The dataclasses: of the page, of all messages and all requests, and what is in them."""
    first = [kind for module in (page, protocol, messages, requests) for kind in _own(module)]
    named = [kind for kind in first if kind is page.Page or kind.__name__.endswith(("Message", "Request"))]
    seen: dict[type[Any], None] = {}
    for kind in named:
        seen.update(dict.fromkeys(_reached(kind)))
    return list(seen)


def _own(module: Any) -> list[type[Any]]:
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    return [kind for kind in found if kind.__module__ == module.__name__]


def _reached(kind: Any) -> Iterator[type[Any]]:
    """What is in it first."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        for _, hint in fields(kind):
            yield from _reached(hint)
        yield kind
    for part in typing.get_args(kind):
        yield from _reached(part)


def fields(kind: type[Any]) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(kind)
    names = (field.name for field in dataclasses.fields(kind))
    return [(name, WRITTEN.get((kind.__name__, name), hints[name])) for name in names]


# -- a type ----------------------------------------------------------------------------------------------------------

ALIASES = {name: kind for name, kind in vars(page).items() if typing.get_origin(kind) is Literal}


def written(hint: Any) -> str:
    """A type in TypeScript. Raises TypeError for one that the extension could not check."""
    arguments, origin = typing.get_args(hint), typing.get_origin(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint in ALIASES.values():
        return next(name for name, alias in ALIASES.items() if alias == hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint.__name__
    if origin is tuple and arguments[1:] == (...,):
        return f"{written(arguments[0])}[]"
    if origin is tuple:
        return f"[{', '.join(map(written, arguments))}]"
    if origin in (types.UnionType, typing.Union) and arguments[1:] == (type(None),):
        return f"{written(arguments[0])} | null"
    raise TypeError(f"{hint} has no form in TypeScript")


def _interface(kind: type[Any]) -> str:
    lines = [f"  {name}: {written(hint)};" for name, hint in fields(kind)]
    if kind.__name__.endswith("Message"):
        lines = ["  protocol: string;", "  v: number;", f"  type: '{kind.type}';", *lines]
    elif kind.__name__.endswith("Request"):
        lines = [f"  type: '{kind.type}';", *lines]
    return "\n".join([f"export interface {kind.__name__} {{", *lines, "}"])


def _arriving(kinds: list[type[Any]]) -> list[type[Any]]:
    """All but requests and what is only in them: those are sent."""
    sent = {kind for one in kinds if one.__name__.endswith("Request") for kind in _reached(one)}
    return [kind for kind in kinds if kind not in sent]


def _form(kind: type[Any]) -> str:
    return _row(kind.__name__, [f"{name}: '{written(hint)}'" for name, hint in fields(kind)], "{  }")


def _words(alias: tuple[str, Any]) -> str:
    return _row(alias[0], list(map(_literal, typing.get_args(alias[1]))), "[]")


def _row(name: str, parts: list[str], brackets: str) -> str:
    """On one line where it fits. `brackets`: with what is between them and the parts."""
    middle = len(brackets) // 2
    opening, closing = brackets[:middle], brackets[middle:]
    line = f"  {name}: {opening}{', '.join(parts)}{closing}"
    inside = ",\n".join(f"    {part}" for part in parts)
    return line if len(line) < WIDTH else f"  {name}: {opening.strip()}\n{inside}\n  {closing.strip()}"


def _table(said: str, name: str, rows: Iterator[str] | Any) -> str:
    inside = ",\n".join(rows)
    return f"/** {said} */\nexport const {name} = {{\n{inside}\n}} as const;"


def _union(name: str, members: Iterator[str] | Any) -> str:
    names = list(members)
    line = f"export type {name} = {' | '.join(names)};"
    return line if len(line) <= WIDTH else "\n".join([f"export type {name} =", *(f"  | {one}" for one in names)]) + ";"


def _literal(value: str | int) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
