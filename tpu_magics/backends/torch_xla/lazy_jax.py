"""Keeps torch_xla from importing jax and torchax in workers when that is not needed.

torch_xla 2.9 imports both, if installed, with the first batch of an MpDeviceLoader (to name a scope in jax) and with
the first `mark_sharding` (to check for a torchax tensor): up to several seconds in every worker. Code that has such a
scope or tensor has already imported them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport

# Read in torch_xla 2.8 and 2.9: the module, and the function in it that goes on without either.
_OPTIONAL = (("torch_xla.debug.profiler", "__enter__"), ("torch_xla.distributed.spmd.xla_sharding", "mark_sharding"))
_IMPORTS = {"maybe_get_jax": "jax", "maybe_get_torchax": "torchax"}


def arrange() -> None:
    """Import neither in these functions. Only for workers."""
    for module, function in _OPTIONAL:
        PostImport().when_imported(module, functools.partial(_do_without, function))


def _do_without(function: str, module: Any) -> None:
    for name, package in _IMPORTS.items():
        if hasattr(module, name):
            setattr(module, name, _unless_there(getattr(module, name), package, function))


def _unless_there(original: Callable[..., Any], package: str, function: str) -> Callable[..., Any]:
    def found(*args: Any, **kwargs: Any) -> Any:
        if package in sys.modules or sys._getframe(1).f_code.co_name != function:
            return original(*args, **kwargs)
        return None

    return found
