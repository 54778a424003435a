"""torch_xla's counters and metrics as numbers; a read takes less than a microsecond.

torch_xla 2.9.0 (metrics.py): a counter appears with its first increment, before that it is None; a metric is (count,
total, samples), times in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

# Operations whose output shape depends on values: torch_xla runs the graph up to them to get it.
DATA_OPS = (
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::bincount",
    "aten::repeat_interleave",
)
# Counted as a fallback, but it is a device-to-host read.
_READS = ("aten::_local_scalar_dense",)


def counter(name: str) -> int:
    """A counter's value, 0 before its first increment."""
    return native()(name) or 0


@lru_cache(maxsize=1)
def native() -> Callable[[str], int | None]:
    """The function of torch_xla that reads a counter; for what is called in every step."""
    import torch_xla

    value: Callable[[str], int | None] = torch_xla._XLAC._xla_counter_value
    return value


def compiles() -> int:
    """Graphs compiled so far in this process, as torch_xla counts them (`UncachedCompile`)."""
    return counter("UncachedCompile")


def graphs_executed() -> int:
    """Graphs run so far in this process, compiled or from the cache."""
    return counter("UncachedCompile") + counter("CachedCompile")


def eager() -> bool:
    """Whether torch_xla runs each operation separately (torch_xla.experimental.eager_mode, 2.9.0)."""
    import torch_xla

    return bool(torch_xla._XLAC._get_use_eager_mode())


def tensor_id(tensor: Any) -> int:
    """torch_xla's number of a tensor on the device: newer ones have higher numbers. 0 for a tensor from a loader: it
    has none in Python ("Expected XLA tensor. Got: XLAFloatType"), and no graph leads to it."""
    import torch_xla

    try:
        return int(torch_xla._XLAC._xla_get_tensor_id(tensor))
    except RuntimeError:
        return 0


def newest_tensor() -> int:
    """The highest number so far: that of a new tensor, which is gone before anything could run it."""
    import torch
    import torch_xla

    return tensor_id(torch.empty((), device=torch_xla.device()))


def only_pending(tensor: Any, others: Sequence[Any]) -> bool:
    """Whether no tensor on the device but these has operations that have not run (2.9.0: a tensor that was read keeps
    its own until the next sync)."""
    import torch_xla

    if not tensor.is_xla:
        return False
    extension = torch_xla._XLAC
    own = list({tensor_id(one): one for one in (tensor, *others)}.values())
    pending: int = sum(extension._check_device_tensor_need_materialization(str(tensor.device)))
    of_these: int = sum(extension._check_tensor_need_materialization(own))
    return pending <= of_these


def data_ops() -> tuple[int, ...]:
    """How often each of DATA_OPS has run."""
    return tuple(counter(name) for name in DATA_OPS)


def fallbacks() -> dict[str, int]:
    """Operations without an XLA kernel that ran on the host, with their counts."""
    import torch_xla

    names = [name for name in torch_xla._XLAC._xla_counter_names() if name.startswith("aten::")]
    return {name: counter(name) for name in names if name not in _READS}


def seconds(metric: str) -> float | None:
    """Total of a time metric; None if not measured."""
    found = _metric(metric)
    return found[1] / 1e9 if found else None


def newest_seconds(metric: str, count: int) -> list[float | None]:
    """The last `count` samples of a time metric, oldest first; None for samples that are not kept."""
    found = _metric(metric)
    samples: list[float | None] = [sample[1] / 1e9 for sample in found[2][-count:]] if found and count else []
    return [None] * (count - len(samples)) + samples


def _metric(name: str) -> Any:
    import torch_xla

    return torch_xla._XLAC._xla_metric_data(name)
