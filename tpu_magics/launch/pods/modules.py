"""The person's own modules: files beside the notebook that the hosts do not have.

What lives here: which of the modules that are loaded are such, their text, and where it is put on a host. What does
not: functions and classes of the notebook itself, which travel by value (parcel.py), and installed packages, which each
host has to have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from tpu_magics.runs.origin import is_library

FOLDER = "modules"
LARGEST = 1 << 20  # bytes of one file
MOST = 16 << 20  # bytes of all


def own_modules() -> dict[str, bytes]:
    """Path below a folder of modules -> text, of all loaded modules that are plain Python and not installed. A package
    of which a part is something else (an extension, a large file) stays whole where it is."""
    found: dict[str, bytes] = {}
    broken: set[str] = set()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or is_library(file):
            continue
        text = _text(Path(file))
        if text is None:
            broken.add(name.partition(".")[0])
        else:
            found[_place(name, module)] = text
    kept = {place: text for place, text in found.items() if _top(place) not in broken}
    return kept if sum(map(len, kept.values())) <= MOST else {}


def _text(path: Path) -> bytes | None:
    try:
        if path.suffix != ".py" or path.stat().st_size > LARGEST:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _place(name: str, module: ModuleType) -> str:
    path = name.replace(".", "/")
    return f"{path}/__init__.py" if hasattr(module, "__path__") else f"{path}.py"


def _top(place: str) -> str:
    return place.partition("/")[0].removesuffix(".py")


def put(texts: Mapping[str, bytes], folder: Path) -> None:
    """On a host: make them importable, before all else of these names."""
    if not texts:
        return
    root = folder / FOLDER
    for place, text in _checked(texts):
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    sys.path.insert(0, str(root))


def _checked(texts: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for place, text in texts.items():
        if ".." not in Path(place).parts and not Path(place).is_absolute():
            yield place, text
