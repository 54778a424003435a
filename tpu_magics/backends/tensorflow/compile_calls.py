"""The `jit_compile` that `model.compile` was called with. Keras stores both "auto" and False as False."""

# Keras 3.15, src/trainers/trainer.py: each model's compile() is Trainer.compile, which makes a new `_compile_config`. A
# loaded model is compiled by `compile_from_config`, with the value at the time it was saved.

from __future__ import annotations

import inspect
import sys
from functools import wraps
from traceback import walk_stack
from typing import Any

# Two underscores: Keras walks over a model's attributes when it saves it, but skips those.
_RECORD = "__tpu_magics_told__"
_LOADED = "compile_from_config"
_NEAR = 8  # frames to search for Keras' own caller of compile()
AUTO = "auto"


def record_calls() -> None:
    """Record the arguments of compile() from now on, if Keras is imported and runs on TensorFlow (idempotent)."""
    kind = _trainer()
    original = getattr(kind, "compile", None)
    if kind is None or original is None or hasattr(original, _RECORD):
        return
    signature = inspect.signature(original)

    @wraps(original)
    def compile_and_record(model: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        original(model, *args, **kwargs)
        requested_jit = signature.bind(model, *args, **kwargs).arguments.get("jit_compile", AUTO)
        model.__dict__[_RECORD] = (model._compile_config, AUTO if _is_loaded() else requested_jit)

    setattr(compile_and_record, _RECORD, original)
    kind.compile = compile_and_record


def stop_recording() -> None:
    """Restore Keras' own compile()."""
    kind = _trainer()
    original = getattr(getattr(kind, "compile", None), _RECORD, None)
    if kind is not None and original is not None:
        kind.compile = original


def requested_jit(model: Any) -> Any:
    """The jit_compile of the last compile(): "auto", True or False; None if unknown."""
    config, value = model.__dict__.get(_RECORD, (None, None))
    return value if config is not None and config is getattr(model, "_compile_config", None) else None


def _trainer() -> Any:
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "backend") or keras.backend.backend() != "tensorflow":
        return None
    return getattr(sys.modules.get("keras.src.trainers.trainer"), "Trainer", None)


def _is_loaded() -> bool:
    near = zip(range(_NEAR), walk_stack(sys._getframe(1)), strict=False)
    return any(frame.f_code.co_name == _LOADED for _, (frame, _) in near)
