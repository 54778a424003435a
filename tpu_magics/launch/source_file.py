"""A person's Python file as a module.

What lives here: making the module and running the file's code in it. What does not: whose files, and what may happen
while they run (work.py, magics/script.py).
"""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class _AsItStands(SourceFileLoader):
    """Compiles what stands in the file. Python's own takes kept byte code where the file's size and the second of its
    last change are the same, and keeps it in a folder beside the file."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def new_module(name: str, path: Path) -> ModuleType:
    """The module, in sys.modules, before anything of the file has run."""
    spec = spec_from_file_location(name, path, loader=_AsItStands(name, str(path)))
    assert spec is not None  # a loader was given
    sys.modules[name] = module = module_from_spec(spec)
    return module


def execute(module: ModuleType) -> None:
    """Run the file's code. Raises what it raises, and SyntaxError."""
    loader = module.__loader__
    assert isinstance(loader, _AsItStands)
    loader.exec_module(module)
