"""The user's line and the library's line behind a frame."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import takewhile
from types import FrameType
from typing import TYPE_CHECKING

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.observe.sites import outwards
from tpu_magics.runs.origin import package_of

if TYPE_CHECKING:
    from tpu_magics.backends.observe.sites import Sites

# Packages with a tensor's own methods, which every library calls.
_OWN = ("torch_xla", "tpu_magics", "Python", "")
_TORCH = "torch"


class SourceLineFinder:
    """Finds lines as soon as it has the `sites` of an observer."""

    def __init__(self) -> None:
        self.sites: Sites | None = None

    def place(self, frame: FrameType) -> SourceLine | None:
        """The innermost line of the user's code."""
        if self.sites is None or self.sites.user_frame(frame) is None:
            return None
        site = self.sites.of_frame(frame)
        return SourceLine(site.path, site.line, site.code)

    def inside(self, frame: FrameType) -> SourceLine | None:
        """The innermost line of a library that the user's line called; None if there is none. Code of tensors
        themselves does not count."""
        if self.sites is None:
            return None
        is_user_code = self.sites.is_user_code
        between = takewhile(lambda one: not is_user_code(one.f_code.co_filename), outwards(frame))
        found = next((one for one in between if _is_library(one.f_code.co_filename)), None)
        return None if found is None else _of(found)

    def users(self, frames: Sequence[tuple[str, str, int]]) -> SourceLine | None:
        """The user's line among (function, path, line), innermost first."""
        site = self.sites.of_stack(frames) if self.sites is not None else None
        return SourceLine(site.path, site.line, site.code) if site is not None else None


def _is_library(path: str) -> bool:
    package = package_of(path)
    if package != _TORCH:
        return package not in _OWN
    parts = _within(path).split("/")
    return len(parts) > 2 and not parts[1].startswith(("_", "utils"))


def _within(path: str) -> str:
    """The path from its package on: "transformers/masking_utils.py"."""
    return path.replace("\\", "/").rpartition("-packages/")[2]


def _of(frame: FrameType) -> SourceLine:
    path, line = frame.f_code.co_filename, frame.f_lineno
    return SourceLine(_within(path), line, linecache.getline(path, line).strip())
