"""Tab in the line of a magic: options, their values, and ARGs. All of it comes from the parsers in options.py: their
spellings and choices, and the `type` that says what a word names."""

from __future__ import annotations

import argparse
import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.launch.cell import scan
from tpu_magics.magics import parser as kinds
from tpu_magics.magics.options import PARSERS, MagicParser

MOST = 100  # offered at once
# A magic at the beginning of a line, or on the right of an assignment, and what follows it.
_LINE = re.compile(r"\s*(?:[^%=]+=\s*)?(%%?tpu_\w+)\s+(.*)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """Where the cursor is: the word before it, the ARGs before that, and the notebook's own names."""

    word: str
    args: Sequence[str]
    names: Mapping[str, Any]


def matches(shell: Any, given: Any) -> Any:
    """What IPython's completer wants of a matcher: before 8.6 it gives the line and takes words; since then it gives a
    context, and takes a result that says whether other matchers may add theirs."""
    completer = shell.Completer
    if isinstance(given, str):
        before = completer.text_until_cursor
        return replacements(shell, before, completer.splitter.split_line(before))
    from IPython.core.completer import SimpleCompletion

    found = replacements(shell, given.text_until_cursor, given.token)
    words = [SimpleCompletion(text=word, type="option" if word.startswith("-") else "value") for word in found]
    return {"completions": words, "suppress": True, "ordered": True}


def replacements(shell: Any, before: str, token: str) -> list[str]:
    """What can stand in the place of `token`, which the front end replaces: the end of the line before the cursor, as
    IPython splits it (`--target=v5e-8,v6` at "=" and ","). It is shorter or longer than our word."""
    own = {name: value for name, value in shell.user_ns.items() if name not in shell.user_ns_hidden}
    word, found = complete(before, {name: value for name, value in own.items() if not name.startswith("_")})
    if word.endswith(token):
        return [one[len(word) - len(token) :] for one in found]
    return [token[: len(token) - len(word)] + one for one in found] if token.endswith(word) else []


def complete(before: str, names: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The word before the cursor, and what it can become. `before`: the line until there."""
    found = _LINE.fullmatch(before)
    if found is None or found[1] not in PARSERS:
        return "", []
    parser = PARSERS[found[1]]()
    words, word, missing = scan(found[2])
    if missing == "bracket" or (found[1] == "%tpu_train" and any(one.endswith(".py") for one in words)):
        return "", []  # within an expression; the words of a script
    used, option, args = _read(parser, words)
    spelling, equals, value = word.partition("=")
    if option is None and equals and _takes_value(parser.options.get(spelling)):
        option, word = parser.options[spelling], value
    word = word.lstrip("\"'") if missing else word
    spelled = option is None and word.startswith("-") and "--" not in words
    action = option or (None if spelled else _positional(parser, len(args)))
    offered = _values(action, Place(word, args, names)) if action is not None else _unused(parser, used)
    fit = (one for one in offered if one.startswith(word) and (missing or not re.search(r"\s", one)))
    return word, list(dict.fromkeys(fit))[:MOST]


def _values(action: argparse.Action, place: Place) -> Iterable[str]:
    if action.choices is not None:
        return action.choices
    return COMPLETERS[action.type](place) if action.type in COMPLETERS else ()


def _unused(parser: MagicParser, used: Sequence[argparse.Action]) -> list[str]:
    """The options that the line does not have yet. Help and short spellings come last."""
    unused = (name for name, action in parser.options.items() if action not in used)
    return sorted(unused, key=lambda name: (name in ("-h", "--help"), not name.startswith("--")))


def _read(parser: MagicParser, words: Sequence[str]) -> tuple[list[argparse.Action], argparse.Action | None, list[str]]:
    """The options in these words, the one of them whose value comes next, and the ARGs."""
    used, args, waiting = [], [], None
    for word in words:
        action = parser.options.get(word.partition("=")[0]) if word.startswith("-") else None
        if waiting is not None:
            waiting = None
        elif action is not None:
            used.append(action)
            waiting = action if _takes_value(action) and "=" not in word else None
        elif not word.startswith("-"):
            args.append(word)
    return used, waiting, args


def _takes_value(action: argparse.Action | None) -> bool:
    return action is not None and action.nargs is None


def _positional(parser: MagicParser, count: int) -> argparse.Action | None:
    return next((one for one in parser.positionals if count == 0 or one.nargs == "*"), None)


# -- what there is of each kind --------------------------------------------------------------------------------------


def _runs(place: Place) -> Iterable[str]:
    """Names, newest first, and ids where one is being typed."""
    from tpu_magics.runs.reader import names_and_ids

    names, ids = names_and_ids()
    return ["last", *names, *(ids if place.word else ())]


def _targets(place: Place) -> Iterable[str]:
    """The short names, of the newest generation first; Google's where one is being typed."""
    from tpu_magics.preflight.targets import SLICES, known

    short = (f"{generation}-{number}" for generation in reversed([*SLICES]) for number in SLICES[generation])
    return _next_of_several(place.word, [*short, *(known() if place.word else ())])


def _rules(place: Place) -> Iterable[str]:
    from tpu_magics.check.rules import RULES

    return _next_of_several(place.word, [*(rule.group for rule in RULES), *(rule.code for rule in RULES)])


def _next_of_several(word: str, names: Iterable[str]) -> Iterable[str]:
    """`names` after the last comma of a word."""
    done = word[: word.rfind(",") + 1]
    return [done + name for name in names if name not in done.split(",")]


def _expressions(place: Place) -> list[str]:
    """The notebook's names, also as values of keywords (`lr=na`): jedi knows none in the line of a magic."""
    keyword = place.word[: place.word.rfind("=") + 1]
    return [keyword + name for name in sorted(place.names)]


def _functions(place: Place) -> list[str]:
    """A function; after it, ARGs."""
    return _expressions(place) if place.args else _defined(place.names, types.FunctionType, functools.partial)


def _scripts(place: Place) -> list[str]:
    """Completions of a script's name, with the scripts of the folder that the word names."""
    if place.args:
        return _expressions(place)
    head, slash, _ = place.word.rpartition("/")
    files = sorted(Path(head + slash or ".").glob("*.py"))
    return [*_functions(place), *(f"{head}{slash}{file.name}" for file in files)]


def _definitions(place: Place) -> list[str]:
    return _defined(place.names, types.FunctionType, type)


def _defined(names: Mapping[str, Any], *kinds: type) -> list[str]:
    """The notebook's own before those that it has imported."""
    found = {name: getattr(value, "__module__", "") for name, value in names.items() if isinstance(value, kinds)}
    return sorted(found, key=lambda name: (found[name] not in ("__main__", "functools"), name))


def _sizes(place: Place) -> list[str]:
    """The parameters of the function, and the whole numbers of the notebook."""
    import inspect

    function = place.names.get(place.args[0]) if place.args else None
    parameters = inspect.signature(function).parameters if callable(function) else ()
    return [*parameters, *(name for name, value in place.names.items() if type(value) is int)]


COMPLETERS: Mapping[Any, Callable[[Place], Iterable[str]]] = {
    kinds.RunName: _runs,
    kinds.Targets: _targets,
    kinds.RuleCodes: _rules,
    kinds.Expression: _expressions,
    kinds.Function: _functions,
    kinds.Script: _scripts,
    kinds.Definition: _definitions,
    kinds.Size: _sizes,
}
