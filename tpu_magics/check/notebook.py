"""The JSON of notebooks (nbformat 3 and 4): reads the code cells, and replaces their sources in place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class NotANotebook(ValueError):
    """JSON that cannot be read, or that is not a notebook; `line` counts from 1."""

    def __init__(self, names: str, line: int = 1) -> None:
        super().__init__(names)
        self.line = line


@dataclass(frozen=True)
class Notebook:
    """`sources` are its code cells in order; `language` is "" for Python, else the language of its kernel."""

    sources: tuple[str, ...]
    language: str = ""


def read(data: bytes) -> Notebook:
    """The code of a notebook; raises NotANotebook."""
    result = _load(_decode(data))
    language = _language(result)
    if language != "python":
        return Notebook((), language)
    return Notebook(tuple(_text(cell) for cell in _code_cells(result)))


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotANotebook(f"a byte is not valid utf-8: 0x{data[error.start]:02x}", line) from None


def _load(text: str) -> dict[str, Any]:
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotANotebook(f"not valid JSON: {error.msg}", error.lineno) from None
    except (RecursionError, ValueError):
        raise NotANotebook("the JSON cannot be read") from None
    if not isinstance(result, dict) or not isinstance(result.get("cells", result.get("worksheets")), list):
        raise NotANotebook("the JSON has no cells")
    return result


def _language(result: Mapping[str, Any]) -> str:
    """The kernel's language in lower case; Python if it is missing."""
    metadata = _dict(result.get("metadata"))
    names = (
        _dict(metadata.get("language_info")).get("name"),
        _dict(metadata.get("kernelspec")).get("language"),
        metadata.get("language"),
    )
    language = next((word.lower() for word in names if isinstance(word, str) and word), "python")
    return "python" if language.startswith(("python", "ipython")) else language


def _code_cells(result: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    sheets = [result] if "cells" in result else result["worksheets"]
    for sheet in sheets:
        cells = _dict(sheet).get("cells")
        for cell in cells if isinstance(cells, list) else ():
            if _dict(cell).get("cell_type") == "code":
                yield cell


def _text(cell: Mapping[str, Any]) -> str:
    """The source of a code cell, "" if the cell says that it is in another language."""
    source = cell.get("source", cell.get("input"))
    written = cell.get("language", _dict(_dict(cell.get("metadata")).get("vscode")).get("languageId"))
    if isinstance(written, str) and written.lower() not in ("python", "ipython", ""):
        return ""
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _dict(result: Any) -> Mapping[str, Any]:
    return result if isinstance(result, dict) else {}


# -- positions --------------------------------------------------------------------------------------------------------


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each value of the JSON object that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield key, start, end
        at = _after_comma(text, end)


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of each item of the JSON array that begins at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _after_comma(text, end)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _member(text: str, at: int, *keys: str) -> tuple[int, int] | None:
    """The position of the value of the first of `keys`; of duplicate keys the last counts, as in json."""
    result = {key: (start, end) for key, start, end in _members(text, at)}
    return next((result[key] for key in keys if key in result), None)


def _source_places(text: str) -> list[tuple[int, int]]:
    """The position of the source of each code cell, (-1, -1) if it has none."""
    top = _skip(text, 0)
    cells = _member(text, top, "cells")
    arrays = [cells] if cells else _sheets(text, top)
    places = []
    for array in arrays:
        for start, _end in _items(text, array[0]):
            cell, _ = _DECODER.raw_decode(text, start)
            if _dict(cell).get("cell_type") == "code":
                places.append(_member(text, start, "source", "input") or (-1, -1))
    return places


def _sheets(text: str, top: int) -> list[tuple[int, int]]:
    sheets = _member(text, top, "worksheets")
    result = [_member(text, start, "cells") for start, _ in _items(text, sheets[0])] if sheets else []
    return [place for place in result if place]


def line_numbers(text: str) -> list[list[int]]:
    """For each code cell the lines (from 1) of the file at which its lines start."""
    return [_line_numbers(text, *place) for place in _source_places(text)]


def _line_numbers(text: str, start: int, end: int) -> list[int]:
    first = text.count("\n", 0, max(start, 0)) + 1
    if text[start : start + 1] != "[":
        return [first] * (text[start:end].count("\\n") + 1)
    result: list[int] = []
    begins = True  # whether the next item begins a line of code
    for item, _ in _items(text, start):
        code = _DECODER.raw_decode(text, item)[0]
        lines = str(code).split("\n")
        line = first + text.count("\n", start, item)
        result += [line] * (len(lines) - 1 + begins - (lines[-1] == ""))
        begins = lines[-1] == ""
    return result or [first]


# -- writing --------------------------------------------------------------------------------------------------------


def rewrite(text: str, changes: Mapping[int, str]) -> str:
    """The JSON with new sources for some code cells (from 1). Everything else, and the format of the sources (a list of
    lines or one string, indentation, escapes), is unchanged."""
    places = _source_places(text)
    ascii_only = text.isascii() and "\\u" in text
    for number in sorted(changes, reverse=True):
        start, end = places[number - 1]
        if start >= 0:
            text = text[:start] + _source(text[start:end], changes[number], ascii_only) + text[end:]
    return text


def _lines(code: str) -> list[str]:
    """Its lines with their ends; a form feed ends none."""
    return [line for line in re.split(r"(?<=\n)", code) if line]


def _source(old: str, code: str, ascii_only: bool) -> str:
    if not old.startswith("["):
        return json.dumps(code, ensure_ascii=ascii_only)
    spans = list(_items(old, 0))
    as_written = {_DECODER.raw_decode(old, start)[0]: old[start:end] for start, end in spans}
    parts = [as_written.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in _lines(code)]
    if not spans or not parts:
        return "[" + ", ".join(parts) + "]"
    before, after = old[: spans[0][0]], old[spans[-1][1] :]
    between = old[spans[0][1] : spans[1][0]] if len(spans) > 1 else "," + before[1:]
    return before + between.join(parts) + after
