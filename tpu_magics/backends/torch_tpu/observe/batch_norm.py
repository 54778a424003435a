"""BatchNorm on TorchTPU: torch_tpu 0.2.0 (aten::native_batch_norm) does not update its running mean and variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_magics.backends.instances import instances

NOT_UPDATED = (
    "The running mean and variance of a BatchNorm were not updated in training (torch_tpu 0.2.0 does not do it), so "
    "model.eval() computes wrong values. Use GroupNorm or LayerNorm, or BatchNorm(track_running_stats=False)."
)
_inherited: list[Any] = []


def remember(items: Sequence[tuple[str, Any]]) -> None:
    """Remember the notebook's layers: the launcher freezes them before the fork, and gc does not list them."""
    _inherited[:] = [value for _, value in items if _is_batch_norm(value)]


def not_updated() -> bool:
    """Whether one has trained on the device, and its running mean is still the initial one. Reads the device."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(_is_stale(one) for one in (*_inherited, *instances(_BatchNorm)))


def _is_batch_norm(value: object) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    return issubclass(type(value), _BatchNorm)  # isinstance() would call what a class says of itself


def _is_stale(module: Any) -> bool:
    mean, batches = module.running_mean, module.num_batches_tracked
    if mean is None or batches is None or mean.device.type != "tpu":
        return False
    return bool(batches.item()) and not mean.cpu().any()
