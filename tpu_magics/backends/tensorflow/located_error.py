"""An error with the user's line, found in its text or in its traceback."""

# Forms seen in TensorFlow 2.21: `File "...", line N` of "in user code", "The op is created at" and "Detected at node
# ... defined at (most recent call last)"; `(defined @ path:line)` of a variable is where it was made.

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from traceback import walk_tb

from tpu_magics.backends.lowered import Place
from tpu_magics.backends.tensorflow.source_locations import SourceLocations
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.origin import OWN, under

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_AT = re.compile(r"\(defined at (\S+?):(\d+)\)")  # an op's, before TensorFlow 2.9
_MADE = re.compile(r"\(defined @ (\S+?):(\d+)\)")
_OF_XLA = re.compile(
    r"tf2xla conversion failed|XLA compilation|compile-time constant|_XlaMustCompile|XLA_\w+_JIT|"
    r"when compiling with XLA"
)
_SAID = 300  # characters of TensorFlow's own text


class LocatedError:
    """One error. `place`: the innermost line of the person's that its text names, else that of its traceback; `made`:
    the line of the variable that it is about."""

    def __init__(self, error: BaseException, places: SourceLocations) -> None:
        self.error = error
        self.places = places
        self.text = _COLOUR.sub("", str(error))

    @cached_property
    def place(self) -> Place | None:
        told = next(filter(None, (self._told(form) for form in (_AT, _LINE))), None)
        return told or self._persons(reversed(self.raised))

    @cached_property
    def is_of_xla(self) -> re.Match[str] | None:
        """Where the text says that XLA could not compile something."""
        return _OF_XLA.search(self.text)

    @cached_property
    def made(self) -> Place | None:
        return self._told(_MADE)

    def _told(self, form: re.Pattern[str]) -> Place | None:
        return self._persons(reversed([(path, int(line)) for path, line in form.findall(self.text)]))

    @cached_property
    def raised(self) -> list[tuple[str, int]]:
        """The traceback, outermost first."""
        return [(frame.f_code.co_filename, line) for frame, line in walk_tb(self.error.__traceback__)]

    def _persons(self, frames: Iterable[tuple[str, int]]) -> Place | None:
        """Frames of ours stand between the person's line and TensorFlow while a run is observed."""
        return self.places.of_frames(frame for frame in frames if not under(frame[0], OWN) and _is_file(frame[0]))

    def at(self) -> str:
        return f" at {self.place}" if self.place else ""

    def details(self, *others: Place | None) -> list[str]:
        """The code of the line, and of others."""
        found = dict.fromkeys((self.place, *others))
        return [f"{place}: {place.code}" for place in found if place and place.code]

    def said(self, found: re.Match[str]) -> str:
        """TensorFlow's own words: the line of the text that a sign was found in."""
        start = self.text.rfind("\n", 0, found.start()) + 1
        kind = type(self.error).__name__
        line = self.text[start:].partition("\n")[0].strip().removeprefix(f"{kind}: ")
        return f"{kind}: {line if len(line) <= _SAID else f'{line[:_SAID]} ...'}"

    def explain(self, what: str, why: str, todo: str, said: Sequence[str] = ()) -> TpuMagicsError:
        """`what` without its full stop; the line is put in."""
        return TpuMagicsError(f"{what}{self.at()}.", why, todo, [*self.details(self.made), *said])


def _is_file(path: str) -> bool:
    """AutoGraph's files are gone by the time somebody reads of them."""
    return "__autograph_generated_file" not in path.rpartition(os.sep)[2]
