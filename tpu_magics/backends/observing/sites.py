"""Finds the user's line on a stack of library calls, and numbers these lines (sites)."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from types import FrameType

from tpu_magics.backends.observing.branches import decides
from tpu_magics.runs.events import Site
from tpu_magics.runs.origin import OWN, is_library, under

_CODE_LENGTH = 200
Place = tuple[str, str, int]  # function, path, line


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


class Sites:
    """The sites of one rank. `cell_names`: file names of cells -> "In [n]"; `cell_ids`: "In [n]" -> the front end's;
    `libraries`: folders of libraries outside the usual places."""

    def __init__(
        self, cell_names: Mapping[str, str], cell_ids: Mapping[str, str], libraries: tuple[str, ...] = ()
    ) -> None:
        self.libraries = libraries
        self.cell_names = cell_names
        self.cell_ids = cell_ids
        self._known: dict[tuple[str, int], Site] = {}
        self._files: dict[int, str] = {}
        self.is_users = lru_cache(maxsize=4096)(self._is_users)

    def _is_users(self, path: str) -> bool:
        if path in self.cell_names:
            return True
        return not is_library(path) and not any(under(path, folder) for folder in self.libraries)

    def users_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the user's code."""
        return next((one for one in outwards(frame) if self.is_users(one.f_code.co_filename)), None)

    def of_frame(self, frame: FrameType | None) -> Site:
        """The site of a running stack; the outermost line if none is the user's."""
        found = self.users_frame(frame) or next(iter(list(outwards(frame))[-1:]), None)
        if found is None:
            return self._site("", "", 0)
        return self._site(found.f_code.co_name, found.f_code.co_filename, found.f_lineno)

    def of_places(self, places: Iterable[Place]) -> Site | None:
        """The site of a stack that the runtime reports, innermost first; None if no line of it is the user's."""
        found = next((place for place in places if self.is_users(place[1])), None)
        return self._site(*found) if found else None

    def of_line(self, path: str, line: int) -> Site:
        """The site of a line that may not be on a stack."""
        return self._site("", path, line)

    def through(self, places: Iterable[Place]) -> tuple[tuple[str, str], ...]:
        """The library functions between the triggering call and the user's line, with their files. Ours are left out:
        which of them are there depends on the hook."""
        inside = takewhile(lambda place: not self.is_users(place[1]), places)
        return tuple((path, function) for function, path, _line in inside if not under(path, OWN))

    def places(self, frame: FrameType | None) -> tuple[Place, ...]:
        """A running stack in the form in which the runtime reports one, innermost first."""
        return tuple((one.f_code.co_name, one.f_code.co_filename, one.f_lineno) for one in outwards(frame))

    def decides(self, site: Site) -> bool:
        """Whether a value read there decides which branch Python takes."""
        return decides(self._files.get(site.id, site.path), site.line)

    def _site(self, function: str, path: str, line: int) -> Site:
        known = self._known.get((path, line))
        if known is None:
            shown = self.cell_names.get(path, path)
            code = linecache.getline(path, line).strip()[:_CODE_LENGTH]
            known = Site(len(self._known), shown, line, function, code, self.cell_ids.get(shown, ""))
            self._known[path, line] = known
            self._files[known.id] = path
        return known
