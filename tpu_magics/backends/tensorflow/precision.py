"""`--precision` as Keras' dtype policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tpu_magics.errors import TpuMagicsError

POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16"}


def check(requested: str) -> None:
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

    check(requested)
    policy = POLICIES.get(requested)
    if policy is None or keras.config.dtype_policy().name == policy:
        return ()
    keras.config.set_dtype_policy(policy)
    return (f"Keras' dtype policy is {policy} for layers and models created from now on.",)


@contextmanager
def within(requested: str) -> Iterator[None]:
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
