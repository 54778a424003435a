"""Loads a user's Python file as a module."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class _UncachedLoader(SourceFileLoader):
    """Compiles the current text of the file. Python's own loader uses cached byte code if the file's size and the
    second of its last change are unchanged, and writes the cache beside the file."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def new_module(name: str, path: Path) -> ModuleType:
    """Create the module in sys.modules, without running the file's code."""
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    assert spec is not None  # a loader was given
    sys.modules[name] = module = module_from_spec(spec)
    return module


def execute(module: ModuleType) -> None:
    """Run the file's code. Raises what it raises, and SyntaxError."""
    loader = module.__loader__
    assert isinstance(loader, _UncachedLoader)
    loader.exec_module(module)
