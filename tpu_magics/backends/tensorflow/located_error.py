"""An error with the user's line, found in its text or in its traceback."""

# Forms seen in TensorFlow 2.21: `File "...", line N` of "in user code", "The op is created at" and "Detected at node
# ... defined at (most recent call last)"; `(defined @ path:line)` of a variable is where it was made.

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from traceback import walk_tb

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.tensorflow.source_locations import SourceLocations
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.origin import OWN, under

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_AT = re.compile(r"\(defined at (\S+?):(\d+)\)")  # of an op, before TensorFlow 2.9
_MADE = re.compile(r"\(defined @ (\S+?):(\d+)\)")
_OF_XLA = re.compile(
    r"tf2xla conversion failed|XLA compilation|compile-time constant|_XlaMustCompile|XLA_\w+_JIT|"
    r"when compiling with XLA"
)
_SAID = 300  # characters of TensorFlow's message


class LocatedError:
    """`place`: the user's innermost line in the error's text, else in its traceback; `made`: the line that created the
    variable that it is about."""

    def __init__(self, error: BaseException, places: SourceLocations) -> None:
        self.error = error
        self.places = places
        self.text = _COLOUR.sub("", str(error))

    @cached_property
    def place(self) -> SourceLine | None:
        in_text = next(filter(None, (self._location_in(form) for form in (_AT, _LINE))), None)
        return in_text or self._user_location(reversed(self.raised))

    @cached_property
    def is_of_xla(self) -> re.Match[str] | None:
        """The match if the text says that XLA could not compile something."""
        return _OF_XLA.search(self.text)

    @cached_property
    def made(self) -> SourceLine | None:
        return self._location_in(_MADE)

    def _location_in(self, form: re.Pattern[str]) -> SourceLine | None:
        return self._user_location(reversed([(path, int(line)) for path, line in form.findall(self.text)]))

    @cached_property
    def raised(self) -> list[tuple[str, int]]:
        """The traceback, outermost first."""
        return [(frame.f_code.co_filename, line) for frame, line in walk_tb(self.error.__traceback__)]

    def _user_location(self, frames: Iterable[tuple[str, int]]) -> SourceLine | None:
        """Without frames of tpu_magics, which are between the user's line and TensorFlow while a run is observed."""
        return self.places.of_frames(frame for frame in frames if not under(frame[0], OWN) and _is_file(frame[0]))

    def at(self) -> str:
        return f" at {self.place}" if self.place else ""

    def details(self, *others: SourceLine | None) -> list[str]:
        """The code of the line, and of others."""
        found = dict.fromkeys((self.place, *others))
        return [f"{place}: {place.code}" for place in found if place and place.code]

    def quote(self, found: re.Match[str]) -> str:
        """TensorFlow's message: the line of the text in which a pattern was found."""
        start = self.text.rfind("\n", 0, found.start()) + 1
        kind = type(self.error).__name__
        line = self.text[start:].partition("\n")[0].strip().removeprefix(f"{kind}: ")
        return f"{kind}: {line if len(line) <= _SAID else f'{line[:_SAID]} ...'}"

    def explain(self, what: str, why: str, todo: str, quotes: Sequence[str] = ()) -> TpuMagicsError:
        """The explanation. `what` comes without a full stop; the line is added."""
        return TpuMagicsError(f"{what}{self.at()}.", why, todo, [*self.details(self.made), *quotes])


def _is_file(path: str) -> bool:
    """AutoGraph's files are deleted before anybody can read them."""
    return "__autograph_generated_file" not in path.rpartition(os.sep)[2]
