"""Whether code is the user's or a library's, by its path."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tpu_magics.runs.files import working_folder

LEFT_OUT = "<left out>"
"""Path of a frame that replaces `line` frames that were left out."""

OWN = str(Path(__file__).parents[1])
AUTOGRAPHS = "__autograph_generated_file"
"""Part of the path of code that TensorFlow generates from a user's function."""
_STDLIB = tuple(sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")}))
_SITE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
# Code without a file that the user can have typed; all other names (<frozen ...>, <decorator-gen-3>) are generated.
_TYPED = ("<ipython-input", "<stdin", "<string", "<cell")


# Packages that are also installed into separate folders (`pip install --target`).
_APART = ("tensorflow", "keras")


def is_library(path: str, function: str = "") -> bool:
    """Whether code at `path` is not the user's: installed packages, the standard library, ourselves, generated code
    (also the methods of data classes and named tuples, which only the name of their `function` tells from `exec`)."""
    generated = path == "<string>" and (function == "<lambda>" or function.startswith("__"))
    return generated or _is_installed(path) or bool(_apart(path)) or AUTOGRAPHS in path


@lru_cache(maxsize=4096)
def _is_installed(path: str) -> bool:
    if path.startswith("<"):
        return not path.startswith(_TYPED)
    return bool(_SITE.search(path)) or under(path, OWN) or any(under(path, folder) for folder in _STDLIB)


def package_of(path: str, function: str = "") -> str:
    """The name of the library that `path` belongs to, for display: "torch", "tpu_magics", "Python"; "" for none."""
    if path == LEFT_OUT or not is_library(path, function):
        return ""
    found = _SITE.findall(path) or _apart(path) or (["tensorflow"] if AUTOGRAPHS in path else [])
    if found:
        return str(found[-1]).removesuffix(".py")
    return "tpu_magics" if under(path, OWN) else "Python"


def _apart(path: str) -> list[str]:
    """The package's name, where `path` lies beside an imported package of _APART."""
    files = (getattr(sys.modules.get(name), "__file__", None) or "" for name in _APART)
    folders = (folder for folder in _installs(*files) if under(path, folder))
    return [Path(path).relative_to(folder).parts[0] for folder in folders]


@lru_cache
def _installs(*files: str) -> tuple[str, ...]:
    """The folders above these packages that hold nothing but what was installed. The working folder is excluded,
    although a user may install into it."""
    folders = dict.fromkeys(str(Path(file).parents[1]) for file in files if file)
    return tuple(one for one in folders if Path(one) != working_folder() and any(Path(one).glob("*.dist-info")))


def under(path: str, folder: str) -> bool:
    """Whether `path` lies below `folder`."""
    return path.startswith(folder + os.sep)


Result = TypeVar("Result")


def cached_by_type(function: Callable[[type], Result]) -> Callable[[type], Result]:
    """Cache the results by the id of the class: a metaclass may make its classes unhashable."""
    known: dict[int, tuple[type, Result]] = {}

    def cached(kind: type) -> Result:
        if id(kind) not in known:
            known[id(kind)] = kind, function(kind)
        return known[id(kind)][1]

    return cached


@cached_by_type
def is_library_type(kind: type) -> bool:
    """Whether a class is not from the user's own code."""
    return is_library_module(str(kind.__module__))


def is_library_module(name: str) -> bool:
    """Whether a module is not the user's own."""
    if name == "__main__":
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None:
        return False
    if file or getattr(module, "__spec__", None) is not None:
        return is_library(file) if file else True
    outer, _, inner = name.rpartition(".")  # made by code: a library's within it, or the user's
    return bool(inner and outer) and is_library_module(outer)


def is_user_function(function: Any) -> bool:
    """Whether a function is from the user's own code."""
    code = getattr(function, "__code__", None)
    return code is not None and not is_library(code.co_filename)
