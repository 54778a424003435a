"""The parser of the magics' options, and options that several magics share."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import NewType, NoReturn

from tpu_magics.errors import TpuMagicsError

# What a word names, as the `type` of an option or ARG: completion.py offers what there is of it.
RunName = NewType("RunName", str)
Targets = NewType("Targets", str)  # one or several, separated by commas
RuleCodes = NewType("RuleCodes", str)  # the same
Expression = NewType("Expression", str)
Function = NewType("Function", str)  # and the ARGs after it, which are expressions
Script = NewType("Script", str)  # the same, or a script's file
Definition = NewType("Definition", str)  # a function or a class
Size = NewType("Size", str)  # a parameter, or a whole number of the notebook


class MagicParser(argparse.ArgumentParser):
    """An argument parser that raises TpuMagicsError, offers the nearest option, and never leaves the process."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this help")

    def error(self, message: str) -> NoReturn:
        raise TpuMagicsError(
            f"{self.prog}: {message}.",
            "",
            f"See {self.prog} -h for its options.",
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a line; unknown options get the nearest known one offered."""
        found, left = self.parse_known_intermixed_args(list(words))
        if left:
            self._refuse(left[0])
        return found

    def _refuse(self, word: str) -> NoReturn:
        known = list(self.options)
        if not word.startswith("-"):
            raise TpuMagicsError(
                f"{self.prog} does not take {word!r} here.",
                "It takes no more ARGs than its help says. An expression with spaces counts as several words.",
                f"See {self.prog} -h, or assign the expression to a name and use that.",
            )
        option = word.split("=")[0]
        near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise TpuMagicsError(
            f"{self.prog} has no option {option}{hint}",
            f"Its options are {', '.join(sorted(known, key=str.lower))}.",
            f'See {self.prog} -h. Write an ARG that begins with a minus in parentheses: "({word})".',
        )

    @property
    def options(self) -> Mapping[str, argparse.Action]:
        """All options but hidden ones, by each of their spellings."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return {spelling: action for action in shown for spelling in action.option_strings}

    @property
    def positionals(self) -> Sequence[argparse.Action]:
        """What takes the words that belong to no option."""
        return [action for action in self._actions if not action.option_strings]


def count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def positive(text: str) -> int:
    found = count(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return found


def counts(text: str) -> tuple[int, ...]:
    return tuple(count(part) for part in text.split(",") if part.strip())


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
