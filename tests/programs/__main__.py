"""`python -m tests.programs [--write] [NAME ...]`: run programs plain and under `%%tpu_train`, and compare.

With --write the table of docs/programs.md is made again, if all programs were run and none differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.magics.kernel import Kernel, running_kernel
from tests.overlay import frameworks_path
from tests.programs import compare, notebook
from tests.programs.program import Program, all_programs
from tests.xla_flags import QUICK

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "programs.md"
BEGIN, END = "<!-- table: made by python -m tests.programs --write -->", "<!-- end of table -->"
NOT_HOME = "unchanged here"  # what a run says of what it could not bring home


@dataclass(frozen=True)
class Plain:
    """A plain run. `compiles`: what torch_xla counted in each training cell, where the run was with it."""

    error: str
    compiles: list[int]
    compared: Any


class PlainRuns:
    """The plain runs of programs, which go on in a process of their own, with or without `libraries`. Use it in a
    `with` block."""

    def __init__(self, truth: str, programs: Sequence[Program], folder: Path, libraries: bool = False) -> None:
        self.folder = folder / f"{truth}{' with libraries' if libraries else ''}"
        self.folder.mkdir()
        self.found: dict[str, Plain] = {}
        command = [sys.executable, "-m", "tests.programs.plain", truth, str(self.folder)]
        with open(self.folder / "printed", "wb") as printed:
            self.process = subprocess.Popen(
                [*command, *(program.name for program in programs)],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": frameworks_path(libraries),
                    "PJRT_DEVICE": "CPU",
                    "XLA_FLAGS": QUICK,
                    **offline(self.folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
            )

    def __enter__(self) -> PlainRuns:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def of(self, program: Program) -> Plain:
        """A program's plain run, waited for."""
        assert self.process.stdout is not None
        while program.name not in self.found:
            line = self.process.stdout.readline()
            assert line, f"the plain runs have ended:\n{(self.folder / 'printed').read_text()}"
            told = json.loads(line)
            path = self.folder / f"{told['name']}.pickle"
            compared = compare.read(path) if path.exists() else None
            self.found[told["name"]] = Plain(told["error"], told["compiles"], compared)
        return self.found[program.name]


def program_kernel(folder: Path, libraries: bool = False, **environment: str) -> AbstractContextManager[Kernel]:
    """A kernel for programs with or without `libraries`; what they write to a home folder goes to `folder`."""
    return running_kernel(folder, PYTHONPATH=frameworks_path(libraries), **offline(folder), **environment)


def offline(folder: Path) -> dict[str, str]:
    """The environment of libraries that would otherwise ask servers, and keep settings in the home folder."""
    return {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "True", "YOLO_CONFIG_DIR": str(folder)}


def problems(program: Program, plain: Plain, ran: notebook.Ran) -> list[str]:
    """What is not as it should be; nothing where the program did the same in both runs."""
    if plain.error:
        return [f"the plain run failed:\n{plain.error}"]
    if ran.error:
        return [ran.error]
    found = list(compare.differences(plain.compared, ran.compared))
    if tuple(ran.compiles) != program.compiles:
        found.append(f"compiles: {many(ran.compiles)}, and {many(program.compiles)} are expected")
    found += [f"printed: {line}" for line in ran.printed.splitlines() if NOT_HOME in line]
    return found


def plain_problems(program: Program, plain: Plain) -> list[str]:
    """What is not as expected of a run with torch_xla and without the extension."""
    if program.plain_compiles is None:
        return [] if plain.error else ["plain torch_xla does not fail any longer"]
    if plain.error:
        return [f"plain torch_xla failed:\n{plain.error}"]
    if tuple(plain.compiles) != program.plain_compiles:
        return [f"plain torch_xla: {many(plain.compiles)} compiles, and {many(program.plain_compiles)} are expected"]
    return []


def many(compiles: Sequence[int] | None) -> str:
    return "fails" if compiles is None else " + ".join(map(str, compiles))


# -- the table of the docs ------------------------------------------------------------


def table(programs: Sequence[Program]) -> str:
    """The programs as a table in Markdown."""
    lines = ["| program | plain run | compiles | plain torch_xla |", "|---|---|---|---|", *map(_row, programs)]
    return "\n".join(lines)


def _row(program: Program) -> str:
    link = f"[{program.title}](../tests/programs/cells/{program.path.name})"
    return f"| {link} | {program.truth} | {many(program.compiles)} | {many(program.plain_compiles)} |"


def with_table(document: str, programs: Sequence[Program]) -> str:
    """The document with the table between its markers."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(programs)}\n\n{END}{after}"


# -- the command ------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    asked = _read(words)
    every = all_programs()
    programs = [program for program in every if program.name in asked.names or not asked.names]
    failed = sum(
        _failed([program for program in programs if program.libraries is libraries], libraries)
        for libraries in (False, True)
    )
    if asked.write and not failed and programs == every:
        DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8"), every), encoding="utf-8")
        print(f"written: {DOCS.relative_to(ROOT)}")
    return 1 if failed else 0


def _failed(programs: Sequence[Program], libraries: bool) -> int:
    """Run programs that have the same packages. How many differ."""
    if not programs:
        return 0
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        runs = {
            truth: stack.enter_context(PlainRuns(truth, programs, folder, libraries)) for truth in ("CPU", "XLA:CPU")
        }
        kernel = stack.enter_context(program_kernel(folder, libraries, XLA_FLAGS=QUICK))
        return sum(not _shown(program, runs, kernel, folder / program.name) for program in programs)


def _shown(program: Program, runs: dict[str, PlainRuns], kernel: Kernel, folder: Path) -> bool:
    folder.mkdir()
    start = time.monotonic()
    ran = notebook.run(kernel, program, folder)
    seconds = time.monotonic() - start
    plain = runs["XLA:CPU"].of(program)
    found = [*problems(program, runs[program.truth].of(program), ran), *plain_problems(program, plain)]
    print(f"==> {program.name}: {seconds:.1f} s, {many(ran.compiles)} compiles, plain torch_xla {many(plain.compiles)}")
    print(*(f"    {one}\n" for one in found), sep="", end="", flush=True)
    return not found


def _read(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description="Programs against their plain runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of tests/programs/cells (default: all)")
    parser.add_argument("--write", action="store_true", help="make the table of docs/programs.md again")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
