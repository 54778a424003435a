"""Ahead-of-time compiles for a TPU that is not here: does a training step fit, is it bf16, what does it cost?

This package is callable, because the function and the package share a name: `tpu_magics.preflight(...)` is
`tpu_magics.magics.preflight.preflight`.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


def _function() -> Any:
    import tpu_magics

    return tpu_magics._preflight()


class _Callable(ModuleType):
    """The package, callable as `tpu_magics.preflight`."""

    @property
    def __call__(self) -> Any:
        return _function()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """With the signature, which `help(module)` does not show."""
        return f"preflight{_without_types(self.__signature__)}\n\n{inspect.getdoc(_function())}"


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)


sys.modules[__name__].__class__ = _Callable
