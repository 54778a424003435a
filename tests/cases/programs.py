"""Finds the programs that compiles are tested with, and reads the JSON that opens each and the marks in its lines.

A mark is a comment: `# site` on a line that triggers a step, `# read` on one that reads a value from the device. A word
after it is the mark's name (`# site evaluation`), by which an entry of `recompiles` or `reads` may name the line:
{"cause": "input-shape", "at": "evaluation"}. An entry with "branch": "TPU" is for runs in which libraries take their
TPU branch; `compiles` does not count it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "cases" / "recompiles"
SHARED = ROOT.parent / "shared" / "cases" / "recompiles"
KEYS = {"compiles", "recompiles", "reads"}

_MARK = re.compile(r"# (site|read)(?: (\w+))?(?= #|$)")


@dataclass(frozen=True)
class Mark:
    """A marked line, counted from 1. `kind`: "site" or "read"; `name`: the word after it, or ""."""

    line: int
    kind: str
    name: str


@dataclass(frozen=True)
class Expected:
    """A recompile or a read that must be reported: its allowed causes (none for a read), the words that the report must
    hold, and the name of the mark where it must be, or ""; whether it needs no action (None: it is not looked at);
    whether it is only there where libraries take their TPU branch."""

    causes: tuple[str, ...]
    mentions: tuple[str, ...]
    at: str
    normal: bool | None = None
    on_tpu: bool = False


@dataclass(frozen=True)
class Program:
    """One program of the form that the README beside the shared ones describes."""

    path: Path
    compiles: int
    recompiles: tuple[Expected, ...]
    reads: tuple[Expected, ...]
    marks: tuple[Mark, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    def lines(self, kind: str, name: str = "") -> set[int]:
        """The lines that are marked so."""
        return {mark.line for mark in self.marks if mark.kind == kind and name in ("", mark.name)}

    def on(self, branch: str) -> Program:
        """What must be reported of a run on this branch of libraries ("TPU")."""
        told = tuple(one for one in self.recompiles if branch == "TPU" or not one.on_tpu)
        return replace(self, recompiles=told, compiles=self.compiles + sum(one.on_tpu for one in told))

    def train(self) -> Callable[[], Any]:
        """Its training function, from a module of its own."""
        spec = importlib.util.spec_from_file_location(f"recompile_case_{self.name}", self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function: Callable[[], Any] = module.train
        return function


def read_program(path: Path) -> Program:
    """A program as its docstring and its marks tell it. Raises ValueError where it has not the form."""
    source = path.read_text(encoding="utf-8")
    told = json.loads(ast.get_docstring(ast.parse(source), clean=False) or "null")
    if not isinstance(told, dict) or not {"compiles", "recompiles"} <= told.keys() <= KEYS:
        raise ValueError(f"{path}: the docstring must be JSON with compiles, recompiles and perhaps reads")
    lines = enumerate(source.splitlines(), start=1)
    marks = tuple(Mark(number, kind, name) for number, line in lines for kind, name in _MARK.findall(line))
    return Program(path, told["compiles"], _expected(told["recompiles"]), _expected(told.get("reads", [])), marks)


def _expected(entries: list[dict[str, Any]]) -> tuple[Expected, ...]:
    return tuple(
        Expected(
            *(_many(entry.get("cause", [])), _many(entry.get("mentions", [])), entry.get("at", "")),
            *(entry.get("normal"), entry.get("branch") == "TPU"),
        )
        for entry in entries
    )


def _many(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def all_programs() -> list[Program]:
    """The project's own programs, and those beside the repository where they are."""
    folders = [folder for folder in (OWN, SHARED) if folder.is_dir()]
    return [read_program(path) for folder in folders for path in sorted(folder.glob("*.py"))]
