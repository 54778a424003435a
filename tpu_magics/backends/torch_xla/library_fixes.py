"""Fixes for torch, torch_xla and torchax, and for FSDP under transformers' Trainer and accelerate: in a worker, but for
`prepare_notebook`."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from tpu_magics.backends.torch import notebook_loads, randomness, runtime
from tpu_magics.backends.torch.hooks import as_original, replace
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch_xla.trace import live_tensors
from tpu_magics.backends.torch_xla.trainer import AroundLoader

# torch_xla 2.8 and 2.9: the module, and the function in it that works without either.
_OPTIONAL = (("torch_xla.debug.profiler", "__enter__"), ("torch_xla.distributed.spmd.xla_sharding", "mark_sharding"))
_IMPORTS = {"maybe_get_jax": "jax", "maybe_get_torchax": "torchax"}


def prepare_notebook() -> None:
    """What cells need before they use torch_xla in the notebook's process: it keeps what needs no device from starting
    the XLA runtime, and restores what torch_xla 2.7 removed and most notebooks still call (idempotent)."""
    randomness.defer_seeds()
    _restoring.when_imported("torch._utils", notebook_loads.load_on_cpu)
    _restoring.when_imported(randomness.XLA_MODEL, _restore_names)
    _restoring.when_imported("torch_xla", _sync_nothing)
    _restoring.when_imported("torch_xla.utils.checkpoint", _checkpoint_on_cpu)
    _restoring.when_imported("torch_xla.amp.autocast_mode", _autocast_on_cpu)
    _restoring.when_imported("torch_xla.experimental.gru", _gru_on_cpu)
    _restoring.when_imported("torch_xla._patched_functions", _clip_on_cpu)


# Functions of torch_xla.core.xla_model, and those of torch_xla.runtime that do the same. Rule TPU412 knows more.
RESTORED = {"xrt_world_size": "world_size", "get_ordinal": "global_ordinal"}
_restoring = PostImport()


def _restore_names(xla_model: Any) -> None:
    for name, now in RESTORED.items():
        if not hasattr(xla_model, name):
            setattr(xla_model, name, functools.partial(_of_runtime, now))


def _of_runtime(name: str, defval: object = None) -> Any:  # noqa: ARG001 - the argument that it had
    """Looked up at each call: a rehearsal changes these functions."""
    import torch_xla.runtime

    return getattr(torch_xla.runtime, name)()


def _sync_nothing(torch_xla: Any) -> None:
    """Without the runtime nothing waits on a device: diffusers' (0.42) pipelines sync wherever torch_xla is installed,
    which would start it."""
    original = torch_xla.sync
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def sync(*args: Any, **kwargs: Any) -> None:
        if runtime.running():
            original(*args, **kwargs)

    torch_xla.sync = sync


def _checkpoint_on_cpu(module: Any) -> None:
    """Without the runtime, torch's own: torch_xla's (2.9) starts it for the device's random state."""
    original = module.checkpoint
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        if runtime.running():
            return original(function, *args, **kwargs)
        from torch.utils.checkpoint import checkpoint as of_torch

        return of_torch(function, *args, **{"use_reentrant": True, **kwargs})

    module.checkpoint = checkpoint


def _autocast_on_cpu(module: Any) -> None:
    """Let the autocast of a run's code take the CPU, which its device is in the notebook; torch_xla 2.9 raises an
    AssertionError."""
    original = module.autocast.__init__
    if hasattr(original, "__wrapped__"):
        return
    of_torch = module.autocast.__mro__[1].__init__

    @functools.wraps(original)
    def initialise(self: Any, device: Any, enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> None:
        if "cpu" not in str(device) or runtime.running():
            original(self, device, enabled, dtype, cache_enabled)
            return
        self._enabled, self._xla_device = enabled, "CPU"
        self._dtype = dtype or sys.modules["torch"].bfloat16
        of_torch(self, "cpu", enabled=enabled, dtype=self._dtype, cache_enabled=cache_enabled)

    module.autocast.__init__ = initialise


def _gru_on_cpu(module: Any) -> None:
    """Let the GRU that torch_xla 2.9 puts in the place of torch's take what only torch's can: tensors of the CPU, and
    packed sequences."""
    original = module.GRU.forward
    if hasattr(original, "__wrapped__"):
        return
    of_torch = module.GRU.__mro__[1].forward

    @functools.wraps(original)
    def forward(self: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        return (original if getattr(input, "is_xla", False) else of_torch)(self, input, hx)

    module.GRU.forward = forward


def _clip_on_cpu(module: Any) -> None:
    """Let clip_grad_norm_, which torch_xla 2.9 replaces as it is imported, be torch's own for parameters of the CPU:
    without gradients it would start the runtime, and it refuses foreach=True."""
    from torch.nn import utils

    original = module.clip_grad_norm_
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        held = [parameters] if hasattr(parameters, "grad") else list(parameters)
        own = clip_grad_norm_._orig if not any(one.is_xla for one in held) else original  # type: ignore[attr-defined]
        return own(held, *args, **kwargs)

    module.clip_grad_norm_ = clip_grad_norm_
    if utils.clip_grad_norm_ is original:  # torch_xla was imported before
        utils.clip_grad_norm_ = clip_grad_norm_


def fix_autocast() -> None:
    """Make torch_xla.amp.autocast work on XLA:CPU, with bf16 as on a TPU, and for "xla" alone. Only for workers.

    On a CPU device, torch_xla 2.9 only prints a warning, and entering it raises "'autocast' object has no attribute
    'device'"; on a TPU, "xla" raises "Invalid device format". `torch.autocast("xla")`, which it is on a TPU, works on
    both.
    """
    PostImport().when_imported("torch_xla.amp.autocast_mode", _ask_as_on_tpu)


def _ask_as_on_tpu(module: Any) -> None:
    module.xm = _Model(module.xm)  # torch_xla 2.9 only uses its xla_device_hw there


class _Model:
    """torch_xla's xla_model, which reports a CPU as a TPU."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def xla_device_hw(self, device: Any) -> str:
        """The kind of hardware of an XLA device; as in autocast, "xla" alone is the rank's own."""
        import torch_xla

        found = str(self._model.xla_device_hw(torch_xla.device() if str(device) == "xla" else device))
        return "TPU" if found == "CPU" else found


def launch_here() -> None:
    """A launch in a rank, as scripts have it under `if __name__ == "__main__"`, runs its function in this rank: each
    has got there. Asked for another number of processes, torch_xla refuses."""
    PostImport().when_imported("torch_xla.distributed.xla_multiprocessing", _spawn_here)


def _spawn_here(xmp: Any) -> None:
    original = xmp.spawn

    @functools.wraps(original)
    def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int | None = None, **options: Any) -> Any:
        import torch_xla.runtime as xr

        if nprocs not in (None, xr.world_size()):
            return original(fn, args, nprocs, **options)
        fn(xr.global_ordinal(), *args)
        return None

    xmp.spawn = spawn


def hide_torchax() -> None:
    """Make torch ignore torchax as an accelerator, so that loaders with `pin_memory=True` work. Only for workers.

    torch_xla 2.8 (torch 2.8, as on Kaggle) imports torchax if jax is installed, e.g. when FSDP v2 wraps a Linear.
    torchax registers itself as torch's accelerator, without the hooks that torch needs, so every loader with
    `pin_memory=True` (transformers' default) raises "Please register PrivateUse1HooksInterface". In an MpDeviceLoader
    this ends its thread, the loader returns no batch, and a Trainer ends after no step without an error. XLA does not
    use pinned memory.
    """
    PostImport().when_imported("torchax.device_module", _be_unavailable)


def _be_unavailable(module: Any) -> None:
    module.is_available = lambda: False  # torch.accelerator.is_available() calls this, and a loader calls torch


def skip_jax() -> None:
    """Keep torch_xla from importing jax and torchax when that is not needed. Only for workers.

    torch_xla 2.9 imports both, if installed, with the first batch of an MpDeviceLoader (to name a scope in jax) and
    with the first `mark_sharding` (to check for a torchax tensor): up to several seconds in every worker. Code that has
    such a scope or tensor has already imported them.
    """
    for module, function in _OPTIONAL:
        PostImport().when_imported(module, functools.partial(_do_without, function))


def _do_without(function: str, module: Any) -> None:
    for name, package in _IMPORTS.items():
        if hasattr(module, name):
            setattr(module, name, _unless_there(getattr(module, name), package, function))


def _unless_there(original: Callable[..., Any], package: str, function: str) -> Callable[..., Any]:
    def found(*args: Any, **kwargs: Any) -> Any:
        if package in sys.modules or sys._getframe(1).f_code.co_name != function:
            return original(*args, **kwargs)
        return None

    return found


# -- torch.utils.checkpoint -------------------------------------------------------------------------------------------

# torch 2.9.0 (utils/checkpoint.py): both forms use `torch.xla`, which torch_xla 2.9.0 does not set, for the device's
# random state. XLA removes the recomputation as a common subexpression unless there is an optimization barrier before
# it, which only `torch_xla.utils.checkpoint` (reentrant) has.


def fix_checkpointing() -> None:
    """Make gradient checkpointing work and save memory. Only for workers, after torch_xla is imported."""
    import torch
    import torch.utils.checkpoint as checkpoint

    live_tensors.watch_hooks()
    if not hasattr(torch, "xla"):
        torch._register_device_module("xla", _device_module())
    with contextlib.suppress(AttributeError):  # another version: without barriers
        _recompute_behind_barriers(checkpoint)
        _use_torch_xlas(checkpoint.CheckpointFunction)


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)  # torch: ATen/native/Activation.cpp
_kernels: list[Any] = []  # torch removes those of a library that is collected


def fix_elu() -> None:
    """Make the gradients of ELU, CELU and SELU right. Only for workers.

    torch_xla 2.9 takes the input for the result in ELU's backward(), so that for x < 0 the gradient is x + 1 in place
    of exp(x); and SELU has no backward() of its own.
    """
    import torch

    if _kernels:
        return
    operators = torch.ops.aten
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it replaces another one
        library.impl("elu_backward", _elu_backward, "XLA")
        library.impl("selu", lambda x: operators.elu(x, *_SELU), "AutogradXLA")
        library.impl("selu_", lambda x: operators.elu_(x, *_SELU), "AutogradXLA")
    _kernels.append(library)


def _elu_backward(grad: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any) -> Any:
    """ELU's gradient as in torch (ATen/native/cpu/Elu.h). `x`: the result or, unless it was in place, the input."""
    slope = alpha * scale * input_scale
    low = x * input_scale + slope if is_result else (x * input_scale).exp() * slope
    return grad * low.where(x <= 0, scale)


def fix_loss_of_one_row() -> None:
    """Let the loss of a single row of scores, of shape (classes,), with the number of its class be computed: torch_xla
    2.9 ends with SIGSEGV. Only for workers."""
    import torch

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
            if not getattr(input, "is_xla", False) or input.dim() != 1 or target.dim():
                return original(input, target, *args, **kwargs)
            found = original(input[None], target[None], *args, **kwargs)
            return found[0] if found.dim() else found  # reduction="none"

        return as_original(loss, original)

    for name in ("cross_entropy", "nll_loss"):
        replace(torch.nn.functional, name, make)


def fix_reductions_and_scales() -> None:
    """Make right what torch_xla 2.9 computes wrongly without a word: `x.amax()` and `x.amin()` over all dimensions (it
    gives x), the norm of infinite order (it takes no absolute values), `interpolate` by a factor that is no ratio of
    the sizes, and the divisor_override of avg_pool2d. Only for workers. (All other functions that have samples in
    torch.testing's op_db were compared with the CPU, with their gradients.)"""
    import torch

    functions = torch.nn.functional

    def over_all(original: Any) -> Any:
        @functools.wraps(original)
        def reduce(input: Any, dim: Any = (), *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
            everything = getattr(input, "is_xla", False) and dim in ((), [], None) and input.dim()
            return original(input, tuple(range(input.dim())) if everything else dim, *args, **kwargs)

        return as_original(reduce, original)

    def of_any_order(original: Any) -> Any:
        @functools.wraps(original)
        def norm(
            input: Any,  # noqa: A002 - torch's name
            p: Any = "fro",
            dim: Any = None,
            keepdim: bool = False,
            out: Any = None,
            dtype: Any = None,
        ) -> Any:
            if not getattr(input, "is_xla", False) or p not in _INFINITE or out is not None:
                return original(input, p, dim, keepdim, out, dtype)
            return torch.linalg.vector_norm(input, float(p), dim, keepdim, dtype=dtype)

        return as_original(norm, original)

    def by_any_factor(original: Any) -> Any:
        @functools.wraps(original)
        def interpolate(
            input: Any,  # noqa: A002 - torch's name
            size: Any = None,
            scale_factor: Any = None,
            mode: str = "nearest",
            align_corners: Any = None,
            recompute_scale_factor: Any = None,
            antialias: bool = False,
        ) -> Any:
            other = mode not in ("nearest", "bilinear") or align_corners or recompute_scale_factor or antialias
            factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor, scale_factor)
            of_image = getattr(input, "is_xla", False) and input.dim() == 4 and len(factors) == 2
            if scale_factor is None or size is not None or other or not of_image:
                given = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
                return original(input, *given)
            sizes = [length * factor for length, factor in zip(input.shape[2:], factors, strict=True)]
            if all(int(one) == one for one in sizes):
                return original(input, None, scale_factor, mode, align_corners)
            rows = _resampled(input, 2, float(factors[0]), mode)
            return _resampled(rows, 3, float(factors[1]), mode)

        return as_original(interpolate, original)

    def by_own_divisor(original: Any) -> Any:
        @functools.wraps(original)
        def avg_pool2d(
            input: Any,  # noqa: A002 - torch's name
            kernel_size: Any,
            stride: Any = None,
            padding: Any = 0,
            ceil_mode: bool = False,
            count_include_pad: bool = True,
            divisor_override: Any = None,
        ) -> Any:
            given = (stride or kernel_size, padding, ceil_mode)
            if divisor_override is None or ceil_mode or not getattr(input, "is_xla", False):
                return original(input, kernel_size, *given, count_include_pad, divisor_override)
            sides = kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size, kernel_size)
            return original(input, kernel_size, *given, True) * (sides[0] * sides[-1] / divisor_override)

        return as_original(avg_pool2d, original)

    replace(torch, "norm", of_any_order)
    replace(functions, "interpolate", by_any_factor)
    replace(functions, "avg_pool2d", by_own_divisor)
    for owner, name in ((torch, "amax"), (torch, "amin"), (torch.Tensor, "amax"), (torch.Tensor, "amin")):
        replace(owner, name, over_all)


_INFINITE = (float("inf"), float("-inf"), "inf", "-inf")


def _resampled(x: Any, dim: int, factor: float, mode: str) -> Any:
    """One dimension of an image by the factor, as torch does it (ATen/native/UpSample.h)."""
    import torch

    length = x.shape[dim]
    places, step = torch.arange(int(length * factor), dtype=torch.float32), torch.tensor(1 / factor)
    if mode == "nearest":
        return x.index_select(dim, (places * step).floor().clamp(max=length - 1).long().to(x.device))
    places = ((places + 0.5) * step - 0.5).clamp(min=0)
    low = places.floor().clamp(max=length - 1)
    share = (places - low).to(x.dtype).reshape([-1 if one == dim else 1 for one in range(x.dim())]).to(x.device)
    first, second = (x.index_select(dim, one.long().to(x.device)) for one in (low, (low + 1).clamp(max=length - 1)))
    return first * (1 - share) + second * share


def fix_frozen_batch_norm() -> None:
    """Let a BatchNorm in evaluation mode be trained through, as where a backbone's statistics are frozen: torch_xla
    2.9's backward() of it raises "The size of mean should be compatible with feature count". Only for workers."""
    import torch

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def batch_norm(
            input: Any,  # noqa: A002 - torch's name
            running_mean: Any,
            running_var: Any,
            weight: Any = None,
            bias: Any = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Any:
            trained = any(one is not None and one.requires_grad for one in (input, weight, bias))
            plain = training or running_mean is None or running_var is None
            if plain or not (getattr(input, "is_xla", False) and trained and torch.is_grad_enabled()):
                return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
            form = (1, -1, *[1] * (input.dim() - 2))
            scale = (running_var + eps).rsqrt() * (1 if weight is None else weight)
            found = (input - running_mean.view(form)) * scale.view(form)
            return (found if bias is None else found + bias.view(form)).to(input.dtype)

        return as_original(batch_norm, original)

    replace(torch.nn.functional, "batch_norm", make)


def fix_loaders() -> None:
    """Raise in the user's loop what a dataset or a collate function raises: torch_xla 2.9 reads ahead in a thread, and
    its error ends the loop as if the data had ended. Only for workers."""
    from torch_xla.distributed.parallel_loader import ParallelLoader

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def load(self: Any) -> None:
            self._cpu_loader = _Telling(self._cpu_loader, self._exception_queue, len(self._devices))
            original(self)

        return load

    replace(ParallelLoader, "_loader_worker", make)


class _Telling(AroundLoader):
    """A loader whose error is put into a queue, for each of `count` loops, and ends the items."""

    def __init__(self, inner: Any, errors: Any, count: int) -> None:
        super().__init__(inner)
        self._errors = errors
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.inner
        except BaseException as error:  # also a SystemExit: the thread would end without a word
            for _ in range(self._count):
                self._errors.put(error)


def fix_inference_mode() -> None:
    """Make torch.inference_mode() what torch.no_grad() is, and inference_mode(False) torch.enable_grad(). Only for
    workers: on a device of XLA every module raises "Cannot set version_counter for inference tensor" in it."""
    import torch

    def enter(self: Any) -> None:
        self._inference_mode_context = torch.no_grad() if self.mode else torch.enable_grad()
        self._inference_mode_context.__enter__()

    torch.inference_mode.__enter__ = enter


def _device_module() -> ModuleType:
    """`torch.xla` for torch's functions, like `torch.cuda`."""
    module = ModuleType("torch.xla", "XLA's random state, for torch.utils.checkpoint and torch.random.fork_rng.")
    module.__dict__.update(
        _initialized=True,
        device=lambda _index: contextlib.nullcontext(),
        device_count=lambda: 1,
        get_rng_state=_get_rng_state,
        set_rng_state=_set_rng_state,
    )
    return module


def _get_rng_state(device: Any = None) -> int:
    import torch_xla.core.xla_model as xm

    return int(xm.get_rng_state(_name(device)))


def _set_rng_state(state: int, device: Any = None) -> None:
    import torch_xla.core.xla_model as xm

    xm.set_rng_state(state, _name(device))


def _name(device: Any) -> Any:
    return f"xla:{device}" if isinstance(device, int) else device


def _recompute_behind_barriers(module: Any) -> None:
    """The non-reentrant form: its function is only called to recompute."""
    original = module._checkpoint_without_reentrant_generator

    @functools.wraps(original)
    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(_behind_barrier(function), *args, **kwargs)

    module._checkpoint_without_reentrant_generator = generator


def _behind_barrier(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, assigned=())
    def recompute(*args: Any, **kwargs: Any) -> Any:
        tensors = list(_on_xla((*args, *kwargs.values())))
        if tensors:
            import torch_xla.core.xla_model as xm

            xm.optimization_barrier_(tensors)
        return function(*args, **kwargs)

    return recompute


def _use_torch_xlas(cls: Any) -> None:
    """The reentrant form: use torch_xla's own if a tensor is on an XLA device."""
    original = cls.apply.__func__

    def apply(kind: Any, function: Any, preserve: Any, *args: Any) -> Any:
        if kind is not cls or next(_on_xla(args), None) is None:
            return original(kind, function, preserve, *args)
        from torch_xla.utils.checkpoint import CheckpointFunction

        return CheckpointFunction.apply(function, preserve, *args)

    cls.apply = classmethod(apply)


def _on_xla(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == "xla":
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _on_xla(value)


# -- FSDP -------------------------------------------------------------------------------------------------------------


# Two problems of transformers 5.23.0 stop the training before its first step, on a TPU as well. (1) No optimizer is
# created: trainer.py delays it until the model is wrapped (`_prepare_for_training`), and then creates one only for
# models that accelerate wraps: "'NoneType' object has no attribute 'param_groups'". (2) FSDP v2 supports the outputs of
# few models: integrations/tpu.py splits the output of each wrapped part by its first dimension, but accepts only
# tensors of three dimensions, tuples that begin with one, and CausalLMOutputWithPast: "the output of the model
# shouldn't be `None`".

_FSDP_V2 = "torch_xla.experimental.spmd_fully_sharded_data_parallel"
_PREFERRED = ("logits", "last_hidden_state")


def arrange_fsdp() -> None:
    """Patch the modules in this process, once they are imported. Only for workers."""
    hook = PostImport()
    hook.when_imported("transformers.trainer", lambda module: _make_optimizer(module.Trainer))
    hook.when_imported(_FSDP_V2, lambda module: _know_outputs(module.SpmdFullyShardedDataParallel))
    hook.when_imported("accelerate.optimizer", lambda module: _change_step(module.AcceleratedOptimizer))
    hook.when_imported("accelerate.accelerator", lambda module: _change_clipping(module.Accelerator))


# -- the optimizer ----------------------------------------------------------------------------------------------------
def _make_optimizer(Trainer: Any) -> None:
    original = getattr(Trainer, "_wrap_model", None)
    if original is None or getattr(original, "makes_optimizer", False):
        return

    @functools.wraps(original)
    def wrap_model(trainer: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = original(trainer, model, *args, **kwargs)
        missing = getattr(trainer, "is_fsdp_xla_enabled", False) and trainer.optimizer is None
        if missing and wrapped is not model:
            trainer.create_optimizer(wrapped)
        return wrapped

    wrap_model.makes_optimizer = True  # type: ignore[attr-defined]
    Trainer._wrap_model = wrap_model


# -- outputs under FSDP v2 --------------------------------------------------------------------------------------------
def _know_outputs(Fsdp: Any) -> None:
    original = Fsdp.__init__
    if getattr(original, "knows_outputs", False):
        return

    @functools.wraps(original)
    def init(self: Any, module: Any, *, shard_output: Any = None, **kwargs: Any) -> None:
        if getattr(shard_output, "__module__", "") == "transformers.integrations.tpu":
            shard_output = split_output
        original(self, module, shard_output=shard_output, **kwargs)

    init.knows_outputs = True  # type: ignore[attr-defined]
    Fsdp.__init__ = init


def split_output(output: Any, mesh: Any) -> None:
    """Shard the output of a wrapped part by its first dimension over the mesh axis "fsdp", as transformers does."""
    import torch_xla.distributed.spmd as xs

    tensor = main_tensor(output)
    if tensor is not None:
        xs.mark_sharding(tensor, mesh, ("fsdp", *[None] * (tensor.dim() - 1)))


def main_tensor(output: Any) -> Any | None:
    """The tensor of an output that has a row for each sample: logits, else hidden states, else the first that is not a
    scalar. None if there is none."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.dim() else None
    values: Iterable[Any] = ()
    if isinstance(output, Mapping):
        values = (*(output.get(name) for name in _PREFERRED), *output.values())
    elif isinstance(output, (list, tuple)):
        values = output
    return next((one for one in values if isinstance(one, torch.Tensor) and one.dim()), None)


# -- gradients under accelerate ---------------------------------------------------------------------------------------

# accelerate 1.15.0 averages the gradients of every optimizer over all ranks (optimizer.py, AcceleratedOptimizer.step;
# accelerator.py, clip_grad_norm_). With FSDP (v1) they are averaged already, and each rank has another part: that would
# mix gradients of different parts of a parameter, on a TPU as well, and each rank would clip by the norm of its own
# part. transformers' Trainer (5.23.0) trains FSDP through both; without this patch the loss differs from the second
# step on. Models without such shards are not affected.


def is_shard(parameter: Any) -> bool:
    """Whether this is a rank's shard of a parameter, by torch_xla's mark (2.9.0: torch_xla/distributed/fsdp)."""
    return bool(getattr(parameter, "_is_sharded", False))


def _change_step(Optimizer: Any) -> None:
    original = Optimizer.step
    if getattr(original, "knows_shards", False):
        return

    @functools.wraps(original)
    def step(optimizer: Any, closure: Any = None) -> Any:
        average_whole(optimizer)
        return original(optimizer, closure)

    step.knows_shards = True  # type: ignore[attr-defined]
    Optimizer.step = step


def _change_clipping(Accelerator: Any) -> None:
    original = Accelerator.clip_grad_norm_
    if getattr(original, "knows_shards", False):
        return

    @functools.wraps(original)
    def clip_grad_norm_(accelerator: Any, parameters: Iterable[Any], max_norm: float, norm_type: float = 2) -> Any:
        held = list(parameters)
        if not any(map(is_shard, held)):
            return original(accelerator, held, max_norm, norm_type)
        for optimizer in accelerator._optimizers:
            average_whole(optimizer)
        accelerator.unscale_gradients()
        return clip(held, float(max_norm), float(norm_type))

    clip_grad_norm_.knows_shards = True  # type: ignore[attr-defined]
    Accelerator.clip_grad_norm_ = clip_grad_norm_


def average_whole(optimizer: Any) -> None:
    """For an accelerate optimizer that holds shards: average the gradients of parameters that are not shards, and mark
    the gradients as averaged for accelerate."""
    parameters = list(_parameters(optimizer))
    if optimizer.gradient_state.is_xla_gradients_synced or not any(map(is_shard, parameters)):
        return
    whole = [one.grad.data for one in parameters if one.grad is not None and not is_shard(one)]
    if whole:
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        xm.all_reduce("sum", whole, scale=1.0 / xr.world_size())
    optimizer.gradient_state.is_xla_gradients_synced = True


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def clip(parameters: Sequence[Any], max_norm: float, norm_type: float) -> Any:
    """Scale gradients so that their total norm, including the shards of all ranks, is at most `max_norm`. Returns the
    norm before, as torch.nn.utils.clip_grad_norm_ and FSDP's own clip_grad_norm_ do."""
    import torch

    with torch.no_grad():
        graded = [one for one in parameters if one.grad is not None]
        parts = _norm([one.grad for one in graded if is_shard(one)], norm_type)
        norms = [_of_all_ranks(parts, norm_type)] if parts is not None else []
        whole = _norm([one.grad for one in graded if not is_shard(one)], norm_type)
        norms += [whole] if whole is not None else []
        if not norms:
            return torch.tensor(0.0)
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for one in graded:
            one.grad.mul_(factor.to(one.grad.dtype))
    return total


def _norm(gradients: Sequence[Any], norm_type: float) -> Any | None:
    import torch

    if not gradients:
        return None
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(one, norm_type, dtype=torch.float32) for one in gradients]), norm_type
    )


def _of_all_ranks(norm: Any, norm_type: float) -> Any:
    import torch_xla.core.xla_model as xm

    if norm_type == float("inf"):
        return xm.all_reduce("max", norm)
    return xm.all_reduce("sum", norm**norm_type) ** (1.0 / norm_type)
