"""Operations that torch_xla 2.9 lowers otherwise for a TPU, in its C++ code.

There, an interpolation is a custom call of libtpu's, and `gather` and `scatter` compare each index with each place (a
"dense" program: a mask of both sizes). torch_xla's dense programs are not always right; `correct` mends them in each
worker that is on the TPU branch. XLA:CPU in a TPU's place has no custom calls of libtpu's (`without_libtpu`), and a
worker that traces without XLA's plugin takes the lowerings of a TPU (`as_on_tpu`).
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.trace.host_reads import KernelOverrides

Kernel = Callable[..., Any]

_kept: list[KernelOverrides] = []  # as long as the process


def correct() -> None:
    """Make right what torch_xla 2.9 computes wrongly on a TPU, and only there, without a word: `scatter`, `put_` and
    their relatives add values that have the same index; products, minima and maxima of `scatter_reduce` begin at zero.
    `gather` with fewer indices than the input has rows in another dimension raises an error."""
    _install({"gather": _gather_rows, **_SCATTERS, "put": _put})


def without_libtpu() -> None:
    """Interpolate without libtpu: by rows, or with a matrix of weights for each direction."""
    _install(
        {
            "upsample_nearest2d": _of_kernel(_resized(nearest=True)),
            "upsample_nearest2d_backward": _of_kernel(_resized_gradient(nearest=True)),
            "upsample_bilinear2d": _of_kernel(_resized(nearest=False)),
            "upsample_bilinear2d_backward": _of_kernel(_resized_gradient(nearest=False)),
        }
    )


def as_on_tpu() -> None:
    """Lower as for a TPU, where torch_xla sees a CPU."""
    _install(
        {
            "upsample_nearest2d": _of_kernel(_nearest),
            "upsample_nearest2d_backward": _of_kernel(_nearest_gradient),
            "upsample_bilinear2d": _of_kernel(_bilinear),
            "upsample_bilinear2d_backward": _of_kernel(_bilinear_gradient),
            "gather": _dense_gather,
            "scatter_add": _added,
            **_SCATTERS,
            **dict.fromkeys(_REDUCING, functools.partial(_reducing, kinds={**_WRONG, "add": "sum", "sum": "sum"})),
            "put": _put,
        }
    )


def _install(kernels: dict[str, Callable[[Kernel], Kernel]]) -> None:
    """From now on, in all threads of this process, until it ends. Each is made of the kernel that it replaces."""
    overrides = KernelOverrides()
    for name, make in kernels.items():
        originals: list[Kernel] = []

        def kernel(*args: Any, made: list[Kernel] = originals, **options: Any) -> Any:
            return made[0](*args, **options)

        originals.append(make(overrides.replace(name, kernel)))
    _kept.append(overrides)


def _of_kernel(kernel: Kernel) -> Callable[[Kernel], Kernel]:
    return lambda _original: kernel


# -- gather and scatter ------------------------------------------------------------------------------------------------

# torch_xla 2.9.0, csrc/data_ops.cpp: IsSparseGather; csrc/xla_lower_util.cpp: ShouldUseDenseScatter, XlaDenseScatter.
_GATHER, _SCATTER = "XLA_DENSE_GATHER_FACTOR", "XLA_DENSE_SCATTER_FACTOR"
_TIMES = 10  # the first one
_STARTS = {"sum": 0, "prod": 1, "amax": -math.inf, "amin": math.inf}


@functools.lru_cache
def _factor(name: str, default: int) -> int:
    """The environment's factor, read once like torch_xla does."""
    return int(os.environ.get(name) or default)


def _is_dense(x: Any, index: Any) -> bool:
    """Whether torch_xla makes a dense program, for arguments that torch takes."""
    import torch

    taken = 0 < x.dim() == index.dim() and index.dtype in (torch.int64, torch.int32) and index.numel()
    return bool(taken and index.numel() * _factor(_SCATTER, 100) >= x.numel() > 0)


def _of_one(x: Any, *others: Any) -> tuple[Any, ...]:
    """A single index or value for a row of numbers, as a row: torch takes both."""
    import torch

    return tuple(
        torch.view_copy(one, (1,)) if x.dim() == 1 and isinstance(one, torch.Tensor) and not one.dim() else one
        for one in others
    )


def _mask(dim: int, index: Any, count: int) -> Any:
    """Which place each index means: one dimension more, of `count` places, before that of the indices."""
    import torch

    places = torch.arange(count, device=index.device)
    return torch.unsqueeze_copy(index, dim) == torch.view_copy(places, (-1, *[1] * (index.dim() - dim)))


def _cut(x: Any, index: Any, dim: int) -> Any:
    """Keep as many rows as there are indices, in each dimension but `dim`."""
    import torch

    for one, count in enumerate(index.shape):
        if one != dim and count < x.shape[one]:
            x = torch.slice_copy(x, one, 0, count)
    return x


def _gather_rows(original: Kernel) -> Kernel:
    def gather(keys: Any, x: Any, dim: int, index: Any, **options: Any) -> Any:
        fits = x.dim() == index.dim() and x.dim()
        return original(keys, _cut(x, index, dim % x.dim()) if fits else x, dim, index, **options)

    return gather


def _dense_gather(original: Kernel) -> Kernel:
    import torch

    def gather(keys: Any, x: Any, dim: int, index: Any, **options: Any) -> Any:
        if not x.dim() or x.dim() != index.dim() or x.shape[dim] > _TIMES * _factor(_GATHER, 8192):
            return original(keys, x, dim, index, **options)
        dim %= x.dim()
        mask = _mask(dim, index, x.shape[dim])
        found = torch.where(
            mask, torch.unsqueeze_copy(_cut(x, index, dim), dim + 1), torch.zeros((), dtype=x.dtype, device=x.device)
        )
        return found.any(dim) if x.dtype == torch.bool else found.sum(dim).to(x.dtype)

    return gather


def _added(original: Kernel) -> Kernel:
    """`scatter_add`, which is right on a TPU."""
    import torch

    def scatter_add(keys: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
        index, source = _of_one(x, index, source)
        if not _is_dense(x, index) or x.dtype == torch.bool:
            return original(keys, x, dim, index, source)
        return _reduced(x, dim % x.dim(), index, source, "sum", include_self=True)

    return scatter_add


def _reduced(x: Any, dim: int, index: Any, source: Any, kind: str, include_self: bool) -> Any:
    import torch

    mask = _mask(dim, index, x.shape[dim])
    start = _start(kind, x.dtype)
    first = torch.full((), start, dtype=x.dtype, device=x.device)
    chosen = torch.where(mask, torch.unsqueeze_copy(_cut(source, index, -1), dim), first)
    rest = [count - one for count, one in zip(x.shape, _cut(x, index, dim).shape, strict=True)]
    padding = [count for one in reversed(rest) for count in (0, one)]

    def whole(part: Any, value: float) -> Any:
        return torch.constant_pad_nd(part, padding, value) if any(padding) else part

    found = whole(_REDUCE[kind](chosen, dim + 1).to(x.dtype), start)
    hit = whole(mask.any(dim + 1), False)
    result = torch.where(hit, _JOIN[kind](x, found) if include_self else found, x)
    if kind in ("amax", "amin") and x.dtype.is_floating_point:  # XLA leaves NaN out
        lost = whole(chosen.isnan().any(dim + 1), False)
        lost = lost | (hit & x.isnan()) if include_self else lost
        result = torch.where(lost, torch.full((), math.nan, dtype=x.dtype, device=x.device), result)
    return result


def _start(kind: str, dtype: Any) -> Any:
    import torch

    start = _STARTS[kind]
    if math.isfinite(start) or dtype.is_floating_point:
        return start
    return torch.iinfo(dtype).min if start < 0 else torch.iinfo(dtype).max


_REDUCE: dict[str, Callable[[Any, int], Any]] = {
    "sum": lambda x, dim: x.sum(dim),
    "prod": lambda x, dim: x.prod(dim),
    "amax": lambda x, dim: x.amax(dim),
    "amin": lambda x, dim: x.amin(dim),
}
_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y,
    "prod": lambda x, y: x * y,
    "amax": lambda x, y: x.maximum(y),
    "amin": lambda x, y: x.minimum(y),
}


def _written(original: Kernel) -> Kernel:
    """`scatter` without a reduction: of values with the same index one is kept, as on the CPU."""

    def scatter(keys: Any, x: Any, dim: int, index: Any, source: Any, **options: Any) -> Any:
        import torch

        index, source = _of_one(x, index, source)
        if not _is_dense(x, index) or index.shape[dim] == 1:
            return original(keys, x, dim, index, source, **options)
        dim %= x.dim()
        many = isinstance(source, torch.Tensor)
        values = _cut(source, index, -1) if many else torch.full_like(index, source, dtype=x.dtype)
        return torch.clone(x).index_put_(_places(index, dim), values)

    return scatter


def _places(index: Any, dim: int) -> list[Any]:
    """The place that each index means, for each dimension."""
    import torch

    def of(one: int) -> Any:
        form = [-1 if place == one else 1 for place in range(index.dim())]
        rows = torch.view_copy(torch.arange(index.shape[one], device=index.device), form)
        return torch.expand_copy(rows, index.shape)

    return [index.long() if one == dim else of(one) for one in range(index.dim())]


def _put(original: Kernel) -> Kernel:
    def put(keys: Any, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
        import torch

        if accumulate or index.numel() == 1:
            return original(keys, x, index, source, accumulate)
        flat = torch.view_copy(x, (-1,))
        places = torch.view_copy(index, (-1,))
        flat = torch.clone(flat).index_put_([places], torch.view_copy(source, (-1,)))
        return torch.view_copy(flat, x.shape)

    return put


_WRONG = {"multiply": "prod", "prod": "prod", "amax": "amax", "amin": "amin"}  # reductions, by torch's names


def _reducing(original: Kernel, kinds: Mapping[str, str] = _WRONG) -> Kernel:
    """`scatter` and `scatter_reduce` with one of these reductions."""
    import torch

    def scatter(
        keys: Any, x: Any, dim: int, index: Any, source: Any, *args: Any, include_self: bool = True, **options: Any
    ) -> Any:
        reduce = options.get("reduce", args[0] if args else "")
        kind = kinds.get(reduce)
        index, source = _of_one(x, index, source)
        if kind is None or not _is_dense(x, index):
            more = {} if include_self else {"include_self": False}
            return original(keys, x, dim, index, source, *args, **options, **more)
        values = source if isinstance(source, torch.Tensor) else torch.full_like(index, source, dtype=x.dtype)
        if x.dtype == torch.bool:
            return _reduced(x.int(), dim % x.dim(), index, values.int(), kind, include_self).bool()
        return _reduced(x, dim % x.dim(), index, values, kind, include_self)

    return scatter


_REDUCING = ("scatter.reduce", "scatter.value_reduce", "scatter_reduce.two")
_SCATTERS: dict[str, Callable[[Kernel], Kernel]] = {
    **dict.fromkeys(("scatter.src", "scatter.value"), _written),
    **dict.fromkeys(_REDUCING, _reducing),
}


# -- interpolations: by a matrix for each direction --------------------------------------------------------------------


def _weights(length: int, size: int, nearest: bool, align: bool, like: Any) -> Any:
    """How much each of `length` rows counts in each of `size` new ones, (size, length), as torch does it
    (ATen/native/UpSample.h)."""
    import torch

    options = {"device": like.device, "dtype": torch.float32}
    rows = torch.view_copy(torch.arange(length, **options), (1, -1))
    if nearest:
        places = _nearest_rows(length, size, like).to(torch.float32)
        return (torch.view_copy(places, (-1, 1)) == rows).to(_exact(like.dtype))
    places = torch.arange(size, **options)
    if align:
        places = places * ((length - 1) / (size - 1) if size > 1 else 0.0)
    else:
        places = ((places + 0.5) * (length / size) - 0.5).clamp(min=0)
    away = (torch.view_copy(places.clamp(max=length - 1), (-1, 1)) - rows).abs()
    return (1 - away).clamp(min=0).to(_exact(like.dtype))


def _nearest_rows(length: int, size: int, like: Any) -> Any:
    import torch

    places = torch.arange(size, device=like.device, dtype=torch.float32)
    return (places * (length / size)).floor().clamp(max=length - 1).long()


def _exact(dtype: Any) -> Any:
    """The type to compute in."""
    import torch

    return torch.float64 if dtype == torch.float64 else torch.float32


def _resized(nearest: bool) -> Kernel:
    import torch

    def rows(_keys: Any, image: Any, size: Sequence[int], *_scales: Any) -> Any:
        for one, length in zip((2, 3), size, strict=True):
            image = torch.index_select(image, one, _nearest_rows(image.shape[one], length, image))
        return image

    def forward(_keys: Any, image: Any, size: Sequence[int], *rest: Any) -> Any:
        high, wide = (_weights(image.shape[2 + n], size[n], False, bool(rest[0]), image) for n in (0, 1))
        found = high.matmul(image.to(high.dtype)).matmul(torch.t_copy(wide))
        return (found if image.dtype.is_floating_point else found.round()).to(image.dtype)

    return rows if nearest else forward


def _resized_gradient(nearest: bool) -> Kernel:
    import torch

    def backward(_keys: Any, gradient: Any, size: Sequence[int], shape: Sequence[int], *rest: Any) -> Any:
        align = not nearest and bool(rest[0])
        high, wide = (_weights(shape[2 + n], size[n], nearest, align, gradient) for n in (0, 1))
        return torch.t_copy(high).matmul(gradient.to(high.dtype)).matmul(wide).to(gradient.dtype)

    return backward


# -- interpolations: custom calls of libtpu's --------------------------------------------------------------------------

# torch_xla 2.9.0, csrc/resize_ops.cpp: LowerForward2d, LowerBackward2d.
_CHANNELS_LAST = (0, 3, 2, 1)  # and back
_SPLIT = 3.0  # a gradient with a larger factor in both directions is made in one direction after the other
_ORIGINAL = 1  # xla::CustomCallApiVersion::API_VERSION_ORIGINAL


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
