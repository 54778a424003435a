"""Retraces of tf.functions, with the part of TensorFlow's cache key that changed."""

# Read in TensorFlow 2.21: Function._function_cache._primary (core/function/polymorphism/function_cache.py) holds
# (context, function type); a call is traced when no type in it is a supertype of its own. TensorFlow's own warning says
# only that it happened, after five in a row.

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from tpu_magics.backends.tensorflow.observe.traced_functions import leaves, text_of

REPORTED_EACH = 3  # retraces of one function that are reported
REPORTED_IN_ALL = 24
_SHOWN, _LONGEST = 3, 60
_ADVICE = "Pass Python numbers as tensors and keep shapes and dtypes the same, or give the function an input_signature."
_KERAS_ADVICE = "Give it batches of the same shapes and dtypes each time."
_KERAS_STEP = "one_step_on_data"
_ABSENT = "Literal[None]"  # e.g. omitted sample weights of train_on_batch

_UID = re.compile(r"_(\d+)$")

Key = tuple[str, dict[str, str]]  # where it was traced, and each argument's type


class Retraces:
    """The traces of all functions so far. `started`: TensorFlow's last function number before the run; one with a lower
    number was traced earlier (and may come back: the jit policy caches its traces of a run for the next one)."""

    def __init__(self, started: int) -> None:
        self.started = started
        self.keys: WeakKeyDictionary[Any, list[Key]] = WeakKeyDictionary()
        self.counts: dict[str, int] = {}
        self.reported = 0

    def find(self, function: Any, name: str) -> str:
        """The sentence to report after a call that changed the cache, or "". Of Keras' functions only the innermost is
        reported; the outer ones are traced again with it."""
        known = self.keys.setdefault(function, [])
        keras = _is_keras(function)
        sentence = ""
        for key, number in _keys(function):
            if key in known:
                continue
            if known and number > self.started and not (keras and name != _KERAS_STEP):
                sentence = self._describe(f"Keras' {name}" if keras else name, key, known, keras)
            known.append(key)
        return sentence

    def _describe(self, name: str, key: Key, known: list[Key], keras: bool) -> str:
        """ "" if the key differs only in things that users do not know: a function that creates variables is traced
        twice at its first call."""
        nearest = min(reversed(known), key=lambda one: len(list(_differences(key, one))))
        differences = [one for one in _differences(key, nearest) if not (keras and _ABSENT in one)]
        if not differences:
            return ""
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] > REPORTED_EACH or self.reported >= REPORTED_IN_ALL:
            return ""
        self.reported += 1
        more = f" and {len(differences) - _SHOWN} more" if differences[_SHOWN:] else ""
        advice = _KERAS_ADVICE if keras else _ADVICE
        return f"{name} was traced again: {'; '.join(differences[:_SHOWN])}{more}. {advice}"

    def rest(self) -> Iterator[str]:
        """At the end: functions with more retraces than were reported."""
        for name, count in self.counts.items():
            if count > REPORTED_EACH:
                yield f"{name} was traced again {count} times in this run; only the first {REPORTED_EACH} are listed."


def _keys(function: Any) -> list[tuple[Key, int]]:
    """Each key with the number of its trace."""
    found = function._function_cache._primary.items()
    return [
        ((_where(context), {name: _short(one) for name, one in leaves(kind.parameters)}), _number(concrete.name))
        for (context, kind), concrete in found
    ]


def _is_keras(function: Any) -> bool:
    """Whether its Python function belongs to Keras, as that of `fit`."""
    return str(getattr(function.python_function, "__module__", "")).partition(".")[0] == "keras"


def _number(name: str | bytes) -> int:
    """Of __inference_step_123: TensorFlow counts up in a process."""
    match = _UID.search(text_of(name))
    return int(match[1]) if match else 0


def _where(context: Any) -> str:
    """The parts of a call's context that users know: strategy, device, colocation."""
    inner = getattr(context, "context", None)
    parts = (getattr(inner, name, None) for name in ("device_functions", "in_cross_replica_context", "variable_policy"))
    return " ".join(str(part) for part in parts)


def _differences(new: Key, old: Key) -> Iterator[str]:
    now, before = new[1], old[1]
    for name in (*now, *(one for one in before if one not in now)):
        if now.get(name) != before.get(name):
            yield f"{name} is now {now.get(name, 'absent')}, before {before.get(name, 'absent')}"
    if new[0] != old[0]:
        yield "it was called in another context (device, strategy scope)"


def _short(kind: Any) -> str:
    """TensorSpec(shape=(3,), dtype=tf.float32, name=None) -> TensorSpec((3,), float32)"""
    if type(kind).__name__ == "TensorSpec":
        return f"TensorSpec({kind.shape}, {kind.dtype.name})"
    text = str(kind)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
