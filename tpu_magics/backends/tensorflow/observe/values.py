"""Values that the user logs: a tensor is read after its step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpu_magics.backends.observing import values
from tpu_magics.backends.observing.values import plain


class Values(values.Values):
    """The logged values of one rank."""

    def waits(self, value: Any) -> bool:
        """Whether it is a tensor or variable, whose computation may not be finished."""
        return isinstance(value, (tf.Tensor, tf.Variable)) or callable(getattr(value, "numpy", None))

    def now(self, values: Mapping[str, Any], step: int) -> None:
        """Record values without waiting for the next step."""
        for name, value in values.items():
            self.meter.log(str(name), plain(self.fetched(value) if self.waits(value) else value), step)

    def fetched(self, value: Any) -> Any:
        """As a NumPy value."""
        return value.numpy()


def is_symbolic(value: Any) -> bool:
    """Whether it is a symbolic tensor in a function that is being traced, which has no value to read."""
    return bool(tf.is_tensor(value)) and not hasattr(value, "numpy")


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Epoch logs as in Keras' history: a train_step that returns all of `self.metrics` gives those of compile() as a
    nested dict."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found.update(flat(value) if isinstance(value, Mapping) else {name: value})
    return found
