"""Whose code a line is: the user's, or a library's.

What lives here: telling the two apart by the path of the code. What does not: stacks (launch/frames.py,
backends/torch_xla/observe/).
"""

from __future__ import annotations

import os
import re
import sysconfig
from functools import lru_cache
from pathlib import Path

LEFT_OUT = "<left out>"
"""Path of a frame that stands for `line` frames which were not kept."""

OWN = str(Path(__file__).parents[1])
_STDLIB = tuple(sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "scripts")}))
_SITE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
# Code without a file that a person can have typed; all others (<frozen ...>, <decorator-gen-3>) are made by libraries.
_TYPED = ("<ipython-input", "<stdin", "<string", "<cell")


@lru_cache(maxsize=4096)
def is_library(path: str) -> bool:
    """Whether code at `path` is not the user's: installed packages, the standard library, ourselves, generated code."""
    if path.startswith("<"):
        return not path.startswith(_TYPED)
    return bool(_SITE.search(path)) or under(path, OWN) or any(under(path, folder) for folder in _STDLIB)


@lru_cache(maxsize=4096)
def package_of(path: str) -> str:
    """The name of the library that `path` belongs to, for people: "torch", "tpu_magics", "Python"; "" for none."""
    if path == LEFT_OUT or not is_library(path):
        return ""
    found = _SITE.findall(path)
    if found:
        return str(found[-1]).removesuffix(".py")
    return "tpu_magics" if under(path, OWN) else "Python"


def under(path: str, folder: str) -> bool:
    """Whether `path` lies below `folder`."""
    return path.startswith(folder + os.sep)
