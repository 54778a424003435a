"""Finds the files to check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tpu_magics.check.config import ConfigFinder

SUFFIXES = (".py", ".ipynb")
# Folders without the user's own code.
SKIPPED = frozenset(("node_modules", "build", "dist", "__pycache__", "site-packages", "venv"))


def files_of(paths: Sequence[str], configs: ConfigFinder, missing: list[str]) -> Iterator[str]:
    """The files to check, in order and each once; paths that are neither file nor folder are added to `missing`.

    A file that is named is checked whatever its suffix, unless the configuration excludes it.
    """
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not path.is_dir() and not path.is_file():
            missing.append(str(path))
            continue
        for file in _walk(path, configs, frozenset()) if path.is_dir() else (path,):
            real = file.resolve()
            if real not in seen and not configs.of(file).excludes(file):
                seen.add(real)
                yield str(file)


def _walk(folder: Path, configs: ConfigFinder, above: frozenset[Path]) -> Iterator[Path]:
    """The Python files and notebooks below a folder, sorted by name. A link to a folder above is not followed."""
    real = folder.resolve()
    if real in above:
        return
    for path in _entries(folder):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if not _skipped(path) and not configs.of(path).excludes(path):
                yield from _walk(path, configs, above | {real})
        elif path.name.lower().endswith(SUFFIXES) and path.is_file():
            yield path


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; none if it is not readable."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _skipped(folder: Path) -> bool:
    return folder.name in SKIPPED or (folder / "pyvenv.cfg").is_file()
