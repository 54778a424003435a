"""Operations that torch_xla lowers otherwise for a TPU: here they become what they are on one.

On XLA:CPU, the gradient of an interpolation runs on the host, and an interpolation is made of other operations. On a
TPU each is a custom call of libtpu's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.trace.host_reads import KernelOverrides

# torch_xla 2.9.0, csrc/resize_ops.cpp: LowerForward2d, LowerBackward2d.
_CHANNELS_LAST = (0, 3, 2, 1)  # and back
_SPLIT = 3.0  # a gradient with a larger factor in both directions is made in one direction after the other
_ORIGINAL = 1  # xla::CustomCallApiVersion::API_VERSION_ORIGINAL


class TpuKernels:
    """The kernels of one process."""

    def __init__(self) -> None:
        self._kernels = KernelOverrides()

    def install(self) -> None:
        """From now on, in all threads of this process, until it ends."""
        kernels: dict[str, Callable[..., Any]] = {
            "upsample_nearest2d": _nearest,
            "upsample_nearest2d_backward": _nearest_gradient,
            "upsample_bilinear2d": _bilinear,
            "upsample_bilinear2d_backward": _bilinear_gradient,
        }
        for name, kernel in kernels.items():
            self._kernels.replace(name, kernel)


def _nearest(_keys: Any, image: Any, size: Sequence[int], *_scales: Any) -> Any:
    return _forward("ResizeNearest", image, size, "00")


def _bilinear(_keys: Any, image: Any, size: Sequence[int], align: bool, *_scales: Any) -> Any:
    return _forward("ResizeBilinear", image, size, _config(align))


def _nearest_gradient(_keys: Any, gradient: Any, _size: Any, shape: Sequence[int], *_scales: Any) -> Any:
    return _backward("ResizeNearestGrad", gradient, shape, "00")


def _bilinear_gradient(_keys: Any, gradient: Any, _size: Any, shape: Sequence[int], align: bool, *_scales: Any) -> Any:
    return _backward("ResizeBilinearGrad", gradient, shape, _config(align))


def _config(align: bool) -> str:
    """Whether corners are aligned, and whether pixels have their centers at a half."""
    return "10" if align else "01"


def _forward(target: str, image: Any, size: Sequence[int], config: str) -> Any:
    import torch

    if tuple(image.shape[2:]) == tuple(size):
        return image.clone()
    if tuple(image.shape[2:]) == (1, 1):
        return torch.expand_copy(image, (*image.shape[:2], *size))
    last = torch.permute_copy(image, _CHANNELS_LAST)
    made = _call(target, last, (image.shape[0], size[1], size[0], image.shape[1]), config)
    return torch.permute_copy(made, _CHANNELS_LAST)


def _backward(target: str, gradient: Any, shape: Sequence[int], config: str) -> Any:
    import torch

    if tuple(gradient.shape[2:]) == tuple(shape[2:]):
        return gradient.clone()
    last = torch.permute_copy(gradient, _CHANNELS_LAST)
    rows, channels, height, width = shape
    if gradient.shape[2] > _SPLIT * height and gradient.shape[3] > _SPLIT * width:
        last = _call(target, last, (rows, gradient.shape[2], height, channels), config)
    return torch.permute_copy(_call(target, last, (rows, width, height, channels), config), _CHANNELS_LAST)


def _call(target: str, tensor: Any, shape: Sequence[int], config: str) -> Any:
    import torch_xla

    [made] = torch_xla._XLAC._xla_custom_call(
        [tensor], target, [list(shape)], [tensor.dtype], False, f'"{config}"', _ORIGINAL, {}
    )
    return made
