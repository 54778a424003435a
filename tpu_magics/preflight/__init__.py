"""Ahead-of-time compiles for a TPU that is not here: does a training step fit, is it bf16, what will it cost?

What lives here: a module that can be called, since this room and what it does have one name:
`tpu_magics.preflight(...)` is `tpu_magics.magics.preflight.preflight`. What does not: any of the work; run.py is the
road through the room.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import tpu_magics

        return tpu_magics._preflight()(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
