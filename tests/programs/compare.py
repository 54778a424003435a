"""What a program names to be compared, as plain data, and how two runs of it differ."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-6  # relative to the largest number of a tensor
SMALLEST = 1e-6  # what is smaller is compared as if it were this large: a gradient that is zero but for rounding
TIMES = ("runtime", "per_second", "preparation_time", "total_flos")  # entries of a log that measure the machine


def write(found: Mapping[str, Any], path: Path | str) -> None:
    """Write what a program found; called at its end, in its own process."""
    Path(path).write_bytes(pickle.dumps(portable(found)))


def read(path: Path | str) -> Any:
    return pickle.loads(Path(path).read_bytes())


def portable(value: Any) -> Any:
    """`value` in builtins and numpy arrays: modules and optimizers become their state."""
    import torch

    if hasattr(value, "state_dict"):
        return portable(value.state_dict())
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().double().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
    if isinstance(value, Mapping):
        return {key: portable(one) for key, one in value.items() if not str(key).endswith(TIMES)}
    if isinstance(value, (list, tuple, set)):
        return [portable(one) for one in value]
    if isinstance(value, (np.ndarray, str, bool, int, float, type(None))):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a program cannot compare {type(value).__name__}")


def differences(plain: Any, ours: Any, name: str = "compared") -> Iterator[str]:
    """A line for each place where the two are not equal."""
    if isinstance(plain, Mapping) and isinstance(ours, Mapping):
        for key in {**plain, **ours}:
            if key in plain and key in ours:
                yield from differences(plain[key], ours[key], f"{name}.{key}")
            else:
                yield f"{name}.{key}: only in the {'plain run' if key in plain else 'run under %%tpu_train'}"
    elif isinstance(plain, list) and isinstance(ours, list):
        if len(plain) != len(ours):
            yield f"{name}: {len(plain)} entries in the plain run, {len(ours)} under %%tpu_train"
        for index, (left, right) in enumerate(zip(plain, ours, strict=False)):
            yield from differences(left, right, f"{name}[{index}]")
    elif not _same(plain, ours):
        yield f"{name}: {_short(plain)} in the plain run, {_short(ours)} under %%tpu_train{_how_far(plain, ours)}"


def _same(plain: Any, ours: Any) -> bool:
    if _is_number(plain) and _is_number(ours):
        return np.shape(plain) == np.shape(ours) and distance(plain, ours) <= TOLERANCE
    return type(plain) is type(ours) and bool(plain == ours)


def _is_number(value: Any) -> bool:
    return isinstance(value, (np.ndarray, int, float)) and not isinstance(value, bool)


def distance(plain: Any, ours: Any) -> float:
    """The largest difference, relative to the largest number of the two."""
    left, right = np.asarray(plain, dtype=float), np.asarray(ours, dtype=float)
    if not left.size or np.array_equal(left, right, equal_nan=True):
        return 0.0
    apart = float(np.max(np.abs(left - right)))
    largest = max(SMALLEST, float(np.max(np.abs(left))), float(np.max(np.abs(right))))
    return math.inf if math.isnan(apart) else apart / largest


def _how_far(plain: Any, ours: Any) -> str:
    comparable = _is_number(plain) and _is_number(ours) and np.shape(plain) == np.shape(ours)
    return f" ({distance(plain, ours):.1e} apart)" if comparable else ""


def _short(value: Any) -> str:
    text = f"array of {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
