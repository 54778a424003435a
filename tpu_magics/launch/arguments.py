"""The ARGs of a magic line: words that are Python expressions, e.g. `m1 16 "cfg.lr * 2" key=expr [1, 2]`.

Spaces separate words, except inside quotes and brackets; quotes around a whole word are removed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_magics.errors import TpuMagicsError

_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "\"'"


def split_words(line: str) -> list[str]:
    """The words of a line. Raises TpuMagicsError for an unclosed quote or bracket."""
    words: list[str] = []
    word, quote, depth = "", "", 0
    for char in line.strip() + " ":
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif char.isspace() and not depth:
            if word:
                words.append(_unquoted(word))
            word = ""
            continue
        word += char
    if quote or depth:
        missing = f"quote {quote}" if quote else "bracket"
        raise TpuMagicsError(
            f"The line has an unclosed {missing}.", f"The line is: {line.strip()}", f"Close the {missing}."
        )
    return words


def _unquoted(word: str) -> str:
    """`"a b"` -> `a b`, and `key="a b"` -> `key=a b`; all other quotes belong to the expression."""
    name, equals, value = word.partition("=")
    if equals and name.isidentifier() and _is_quoted(value):
        return f"{name}={value[1:-1]}"
    return word[1:-1] if _is_quoted(word) else word


def _is_quoted(word: str) -> bool:
    return len(word) >= 2 and word[0] in _QUOTES and word[-1] == word[0] and word[0] not in word[1:-1]


def parse_arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Positional and keyword expressions; only their syntax is checked."""
    positional: list[str] = []
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier() and not value.startswith("="):
            named[name] = _checked(value, word)
        elif named:
            raise TpuMagicsError(
                f"The positional ARG {word!r} follows a keyword ARG.",
                "As in a Python call, positional arguments come first.",
                "Move it before the first key=value.",
            )
        else:
            positional.append(_checked(word, word))
    return positional, named


def _checked(expression: str, word: str) -> str:
    try:
        ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise TpuMagicsError(
            f"The ARG {word!r} is not a Python expression: {error.msg}.",
            "ARGs are evaluated in the notebook, like the arguments of a call.",
            'Put quotes around an expression with spaces: "cfg.lr * 2"; write a string as "\'text\'".',
        ) from None
    return expression


def evaluate(expression: str, namespace: dict[str, Any]) -> Any:
    """The value of an ARG in the notebook. Raises TpuMagicsError if the evaluation fails."""
    try:
        return eval(compile(expression, "<ARG>", "eval"), namespace)
    except Exception as error:
        raise TpuMagicsError(
            f"The ARG {expression!r} cannot be evaluated: {type(error).__name__}: {error}.",
            "ARGs are Python expressions, evaluated in the notebook when the cell runs.",
            _advice(expression, error),
        ) from error


def _advice(expression: str, error: Exception) -> str:
    if isinstance(error, NameError) and expression.isidentifier():
        return f"Define `{expression}` in an earlier cell; for a string, write \"'{expression}'\"."
    return "Fix the expression, or compute the value in an earlier cell and use its name here."


def evaluate_all(
    positional: Sequence[str], named: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The values of all ARGs."""
    return [evaluate(e, namespace) for e in positional], {k: evaluate(e, namespace) for k, e in named.items()}
