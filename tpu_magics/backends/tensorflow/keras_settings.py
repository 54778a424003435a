"""Settings of Keras: `--precision` as its dtype policy, and the `jit_compile` that `model.compile` was called with
(Keras stores both "auto" and False as False)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from traceback import walk_stack
from typing import Any

from tpu_magics.errors import TpuMagicsError

# -- precision --------------------------------------------------------------------------------------------------------


POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}


def check_precision(requested: str) -> None:
    """Raise TpuMagicsError for a precision without a Keras policy."""
    if requested in ("", *POLICIES):
        return
    raise TpuMagicsError(
        f"--precision {requested} does not work with TensorFlow.",
        "It is a torch_xla switch that turns float into bfloat16 and double into float. Keras has dtype policies "
        "instead; under mixed_bfloat16, variables stay float32, as the optimizer needs them.",
        "Use --precision bf16 (the policy mixed_bfloat16) or fp32.",
    )


def set_policy(requested: str) -> tuple[str, ...]:
    """Set the global policy; "" changes nothing. Returns notes for the user."""
    import keras

    check_precision(requested)
    policy = POLICIES.get(requested)
    if policy is None or keras.config.dtype_policy().name == policy:
        return ()
    keras.config.set_dtype_policy(policy)
    return (f"Keras' dtype policy is {policy} for layers and models created from now on.",)


@contextmanager
def within_precision(requested: str) -> Iterator[None]:
    """Models built inside it have the precision; afterwards the earlier policy is restored."""
    import keras

    before = keras.config.dtype_policy()
    set_policy(requested)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def models_with_other_policy(models: Mapping[str, Any], requested: str) -> list[str]:
    """A line for each Keras model that was created with another policy than the requested one and keeps it."""
    policy = POLICIES.get(requested)
    found = ((name, getattr(getattr(model, "dtype_policy", None), "name", policy)) for name, model in models.items())
    return [
        f"{name} was created with the policy {own} and keeps it. Build it again under --precision {requested}."
        for name, own in found
        if policy is not None and own != policy
    ]


# -- jit_compile ------------------------------------------------------------------------------------------------------


# Keras 3.15, src/trainers/trainer.py: each model's compile() is Trainer.compile, which makes a new `_compile_config`. A
# loaded model is compiled by `compile_from_config`, with the value at the time it was saved.

# Two underscores: Keras walks over a model's attributes when it saves it, but skips those.
_RECORD = "__tpu_magics_told__"
_LOADED = "compile_from_config"
_NEAR = 8  # frames to search for Keras' own caller of compile()
AUTO = "auto"


def record_compile_calls() -> None:
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


def stop_recording_compile_calls() -> None:
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
