"""A Python file, run as a module."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tpu_magics.check.cells import Cell, read_file
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.notebook import PlainProgram
from tpu_magics.launch.source_file import execute, new_module
from tpu_magics.magics.definitions import defining_cell, value_of
from tpu_magics.magics.headless import last_line
from tpu_magics.magics.training_stubs import SkippedTraining, TrainingStubs, first_of


class ScriptNotebook(PlainProgram):
    """A Python file that was imported stands for the notebook."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self.path, self.module = path, module

    @property
    def namespace(self) -> dict[str, Any]:
        return vars(self.module)

    def checked_cells(self) -> Sequence[Cell]:
        return read_file(self.path)


class ScriptProgram:
    """A Python file, run as a module: what stands below `if __name__ == "__main__":` is not."""

    def __init__(self, path: Path, function: str, say: Callable[[str], None]) -> None:
        self.path, self.name, self.say = path, function, say
        self.stubs = TrainingStubs(say)
        self.module = ModuleType(path.stem)

    @property
    def namespace(self) -> dict[str, Any]:
        return vars(self.module)

    def run(self) -> None:
        cells = read_file(self.path)
        if all(cell.tree is not None for cell in cells):
            defining_cell(cells, self.name)
        self.say(f'{self.path.name} (what is below `if __name__ == "__main__":` is not run)')
        self.stubs.place = self.path.name
        with self.stubs:
            try:
                self._import()
            except (Exception, SystemExit) as error:
                traceback.print_exception(type(error), error, _without_ours(error))
                raise TpuMagicsError(
                    f"{self.path.name} failed: {last_line(error)}",
                    f"Its traceback is above. The file is run first, because it defines `{self.name}`.",
                    "Correct it, and make sure that the files and packages it needs are available.",
                ) from error

    def _import(self) -> None:
        name = self.path.stem if self.path.stem not in sys.modules else f"{self.path.stem}_of_{self.path.parent.name}"
        self.module = new_module(name, self.path)
        session.current.notebook = ScriptNotebook(self.path, self.module)
        execute(self.module)

    def go_on(self) -> bool:
        return False

    def function(self) -> Any:
        if self.name.partition(".")[0] not in self.namespace:
            raise TpuMagicsError(
                f"{self.path.name} has run, and `{self.name}` is not defined.",
                "It is not defined at the top level of the file, or below a condition that was false.",
                "Give --function the name of the training function.",
            )
        return value_of(self.namespace, self.name)

    def launch_of(self, function: Any) -> SkippedTraining | None:
        return first_of(self.stubs.launches, function)


def _without_ours(error: BaseException) -> Any:
    """The traceback from the file's own first line on; None where it did not come so far."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_name != "<module>":
        found = found.tb_next
    return found


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Its folder is the first that modules are looked for in, as it is for `python file.py`."""
    before, notebook = list(sys.path), session.current.notebook
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
        session.current.notebook = notebook
