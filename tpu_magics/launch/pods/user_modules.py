"""Sends the user's own modules (files beside the notebook) to the hosts, which import them from memory.

They keep the paths that they have on the notebook's machine, for tracebacks and records. Installed packages are not
sent: each host needs them.
"""

from __future__ import annotations

import importlib.abc
import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tpu_magics.runs.origin import is_library

MAX_FILE_BYTES = 1 << 20  # bytes of one file
MAX_TOTAL_BYTES = 16 << 20  # bytes of all


@dataclass(frozen=True)
class ModuleSource:
    """A module's source. `path`: on the notebook's machine."""

    path: str
    text: bytes
    package: bool


def collect_user_modules() -> dict[str, ModuleSource]:
    """The loaded modules that are plain Python and not installed, by name. A package with another part (an extension, a
    large file) is not sent at all."""
    sources: dict[str, ModuleSource] = {}
    broken: set[str] = set()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or is_library(file):
            continue
        text = _source_of(Path(file))
        if text is None:
            broken.add(_top_package(name))
        else:
            sources[name] = ModuleSource(file, text, hasattr(module, "__path__"))
    complete = {name: one for name, one in sources.items() if _top_package(name) not in broken}
    return complete if sum(len(one.text) for one in complete.values()) <= MAX_TOTAL_BYTES else {}


def _source_of(path: Path) -> bytes | None:
    try:
        if path.suffix != ".py" or path.stat().st_size > MAX_FILE_BYTES:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _top_package(name: str) -> str:
    return name.partition(".")[0]


# -- on a host --------------------------------------------------------------------------------------------------------


class SourceFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that were sent, before other modules of these names; also folders without `__init__.py`."""

    def __init__(self, texts: Mapping[str, ModuleSource]) -> None:
        self.texts = texts
        self.folders = {name[:at] for name in texts for at, letter in enumerate(name) if letter == "."} - set(texts)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name in self.texts:
            one = self.texts[name]
            spec = ModuleSpec(name, SourceLoader(one), origin=one.path, is_package=one.package)
            spec.has_location = True  # gives the module a `__file__`
            return spec
        if name in self.folders:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = []
            return spec
        return None


class SourceLoader(importlib.abc.SourceLoader):
    """Loads one module that was sent."""

    def __init__(self, one: ModuleSource) -> None:
        self.one = one

    def get_filename(self, fullname: str) -> str:  # noqa: ARG002
        return self.one.path

    def get_data(self, path: str | bytes) -> bytes:
        if path != self.one.path:  # its bytecode cache, which is not sent
            raise OSError(path)
        return self.one.text

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002
        return self.one.package


def install_modules(texts: Mapping[str, ModuleSource]) -> None:
    """Make the modules importable here, and their lines known to tracebacks."""
    if not texts:
        return
    sys.meta_path.insert(0, SourceFinder(texts))
    for one in texts.values():
        lines = one.text.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache[one.path] = (len(one.text), None, lines, one.path)
