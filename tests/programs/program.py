"""The programs under `cells/`: notebooks in percent format (`# %%`), each with what it says of itself."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "cells"

_MARKER = re.compile(r"# %%(?: (?P<told>.*))?")
_MAGIC = re.compile(r"# (?P<magic>%{1,2}tpu_train\b.*)")
_NUMBERS = r"\d+(?: \+ \d+)*"
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
# What scripts/install.py has in "libraries": transformers imports some of it wherever it is there, which takes long.
LIBRARIES = {"sentence_transformers", "timm", "trl", "ultralytics"}
_FACTS = re.compile(
    r"# Plain run: (?P<truth>CPU|XLA:CPU)\. (?:Ranks: (?P<ranks>\d)\. )?"
    rf"Compiles: (?P<compiles>{_NUMBERS})(?:, plain torch_xla: (?P<plain>{_NUMBERS}|fails))?\."
)


@dataclass(frozen=True)
class Cell:
    """A code cell. `magic`: its `%%tpu_train ...` line or `%tpu_train ...` line, or ""; `raises`: it ends in an error,
    as its tag "raises-exception" says."""

    source: str
    magic: str = ""
    raises: bool = False

    def under_magics(self) -> str:
        """Its text as a person has it in a notebook with the extension."""
        return f"{self.magic}\n{self.source}" if self.magic else self.source

    def plain(self) -> str:
        """The same without the extension: the function that `%%tpu_train` would train is called."""
        if not self.magic:
            return self.source
        kind, *words = self.magic.split()
        words = [word for word in words if not word.startswith("-")]
        function = words.pop(0) if kind == "%tpu_train" else self._last_function()
        if not function:
            return self.source
        call = f"{function}({', '.join(words)})"
        return f"{self.source}\n_tpu = __import__('types').SimpleNamespace(value={call})"

    def _last_function(self) -> str:
        last = ast.parse(self.source).body[-1]
        return last.name if isinstance(last, ast.FunctionDef) else ""


@dataclass(frozen=True)
class Program:
    """`truth`: where its plain run is ("CPU": in a process without torch_xla; "XLA:CPU": in one with it);
    `compiles`: of each of its training cells, in their order; `plain_compiles`: the same of plain
    torch_xla, where it is otherwise; None where it fails; `libraries`: whether it imports one of LIBRARIES."""

    path: Path
    title: str
    told: str
    truth: str
    ranks: int
    compiles: tuple[int, ...]
    plain_compiles: tuple[int, ...] | None
    cells: tuple[Cell, ...]
    libraries: bool

    @property
    def name(self) -> str:
        return self.path.stem


def read_program(path: Path) -> Program:
    """A program of `cells/`. Raises ValueError where its first cell lacks the line of facts."""
    text = path.read_text(encoding="utf-8")
    head, *cells = _cells(text)
    facts = _FACTS.search(head[1])
    if facts is None:
        raise ValueError(f"{path}: the first cell has no line like '# Plain run: CPU. Compiles: 3 + 1.'")
    title, *told = [line.removeprefix("#").strip() for line in head[1][: facts.start()].strip().splitlines()]
    return Program(
        path,
        title.removeprefix("# "),
        " ".join(filter(None, told)),
        facts["truth"],
        int(facts["ranks"] or 1),
        _numbers(facts["compiles"]),
        None if facts["plain"] == "fails" else _numbers(facts["plain"] or facts["compiles"]),
        tuple(_cell(marker, text) for marker, text in cells),
        not LIBRARIES.isdisjoint(_IMPORT.findall(text)),
    )


def all_programs() -> list[Program]:
    """All of them, by family and name."""
    return [read_program(path) for path in sorted(FOLDER.glob("*.py"))]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(" + ")))


def _cells(text: str) -> list[tuple[str, str]]:
    """What stands after each cell's `# %%`, and the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if marker := _MARKER.fullmatch(line):
            found.append((marker["told"] or "", []))
        elif found:
            found[-1][1].append(line)
    return [(told, "\n".join(lines).strip()) for told, lines in found]


def _cell(marker: str, text: str) -> Cell:
    first, _, rest = text.partition("\n")
    magic = _MAGIC.fullmatch(first)
    raises = "raises-exception" in marker
    return Cell(rest, magic["magic"], raises) if magic else Cell(text, "", raises)
