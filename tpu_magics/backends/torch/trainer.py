"""transformers' Trainer in a worker: records its values, and makes auto_find_batch_size and saved weights work.

transformers 5.23.0 (trainer.py) and accelerate 1.15.0 (utils/memory.py).
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tpu_magics.backends.torch import runtime, trainer_progress
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.runtime import on_device
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs import events, meter
from tpu_magics.runs.writer import EventWriter

# XLA's out-of-memory messages: a TPU's compiler and runtime (texts in tests/launch/test_diagnosis.py), and
# XLA:CPU ("Out of memory allocating 70368744177664 bytes.", seen in torch_xla 2.9.0). A kernel's own memory (vmem,
# smem) depends on its tiles, not on the batch.
_OUT_OF_MEMORY = re.compile(
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted)\b.*"
    r"(?:(?:ran )?out of memory(?! in memory space [vs]mem)|HbmOom|attempting to (?:reserve|allocate) )"
    r"|ran out of memory (?:in memory space|on) hbm"
    r"|\bout of memory allocating \d+ bytes",
    re.IGNORECASE | re.DOTALL,
)


def arrange() -> None:
    """Patch transformers and accelerate in this process as they are imported. Only for workers."""
    hook = PostImport()
    hook.when_imported("accelerate.utils.memory", _know_out_of_memory)
    hook.when_imported("accelerate.utils.other", _tell_device_tensors_apart)
    hook.when_imported("safetensors.torch", _save_device_tensors)
    hook.when_imported("transformers.trainer", _change_trainer)


def _change_trainer(module: ModuleType) -> None:
    changes = (_know_out_of_memory, _record_values, _start_again_whole, _load_random_states)
    for change in (*changes, trainer_progress.follow):
        with suppress(AttributeError):  # another version without this; the others still apply
            change(module)


# -- weights in files -------------------------------------------------------------------------------------------------
def _save_device_tensors(module: Any) -> None:
    """safetensors tells tensors apart by the addresses of their memory, which a device's have not (0.4 to 0.8:
    "Attempted to access the data pointer on an invalid python storage"): it gets copies. So `save_pretrained`,
    `Accelerator.save_model`, `save_state`, `load_state` and safetensors' own functions work in a worker."""

    def with_copies(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def on_host(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return original(_copies(tensors) if isinstance(tensors, dict) else tensors, *args, **kwargs)

        return on_host

    for name in ("_flatten", "_flatten_as_ptr"):  # the second since 0.8, in place of the first
        if hasattr(module, name):
            setattr(module, name, with_copies(getattr(module, name)))
    if not hasattr(module, "_remove_duplicate_names"):
        return
    duplicates = with_copies(module._remove_duplicate_names)

    def remove_duplicate_names(tensors: Any, *, preferred_names: Any = None, **kwargs: Any) -> dict[str, list[str]]:
        """A file may have tied weights under both names, where accelerate has copied them before."""
        found = duplicates(tensors, preferred_names=preferred_names, **kwargs)
        return {name: [one for one in same if one not in (preferred_names or ())] for name, same in found.items()}

    module._remove_duplicate_names = remove_duplicate_names


def _copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict on the host; what is one tensor on the device is one here, too."""
    import torch

    from tpu_magics.backends.torch.tensor_transfer import to_cpu

    inside = {name: one for name, one in tensors.items() if isinstance(one, torch.Tensor) and on_device(one)}
    first = {_identity(one): one for one in inside.values()}
    copies = dict(zip(first, to_cpu([*first.values()]), strict=True))
    return {name: copies[_identity(one)] if name in inside else one for name, one in tensors.items()}


def _identity(tensor: Any) -> tuple[Any, ...]:
    """A key that is equal for all that `state_dict()` makes of one parameter, which are other Python objects."""
    if tensor.device.type != "xla":
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()  # of a view
        return str(tensor.device), tensor.untyped_storage().data_ptr() or id(tensor), *place
    import torch_xla

    return str(tensor.device), torch_xla._XLAC._xla_get_tensor_id(tensor)


def _tell_device_tensors_apart(module: Any) -> None:
    """Let accelerate find which tensors share memory, before it saves them (`_save_device_tensors`)."""
    original = getattr(module, "id_tensor_storage", None)
    if original is None:
        return

    @functools.wraps(original)
    def id_tensor_storage(tensor: Any) -> Any:
        if on_device(tensor):
            return tensor.device, _identity(tensor)[1], tensor.numel() * tensor.element_size()
        return original(tensor)

    module.id_tensor_storage = id_tensor_storage


# -- the records ------------------------------------------------------------------------------------------------------
_writers: list[EventWriter] = []


@contextmanager
def recording(writer: EventWriter) -> Iterator[None]:
    """Until the block ends, `write` uses this writer and the run folder around it."""
    _writers[:] = [writer]
    try:
        yield
    finally:
        _writers.clear()


def writer() -> EventWriter | None:
    """The writer of this rank's records; None if nothing is recorded."""
    return _writers[0] if _writers else None


def write(kind: type[events.Event], **fields: Any) -> None:
    """Write an event into this rank's records, if there are any."""
    if _writers:
        _writers[0].record(kind, **fields)


def _record_values(module: Any) -> None:
    """What any Trainer logs (loss, learning_rate, eval_loss, ...) goes to the records, on the process that logs. It is
    numbers by then, so nothing is read from the device. Not a callback: a returned Trainer would bring it to the
    notebook."""
    handler = module.CallbackHandler
    original = handler.on_log

    @functools.wraps(original)
    def on_log(self: Any, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> Any:
        if logs and state.is_world_process_zero:
            meter.log(**logs)
        return original(self, args, state, control, logs, **kwargs)

    handler.on_log = on_log


def _load_random_states(module: Any) -> None:
    """A checkpoint of the notebook's CPU has no random state of the device. The original reads it last."""
    cls = module.Trainer
    original = cls._load_rng_state

    @functools.wraps(original)
    def load(trainer: Any, checkpoint: Any) -> None:
        try:
            original(trainer, checkpoint)
        except KeyError as missing:
            if (device := runtime.current()) is None or missing.args != (device.random,):
                raise

    cls._load_rng_state = load


# -- the search for a batch size (auto_find_batch_size, find_executable_batch_size) -----------------------------------
def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is an out-of-memory error of XLA, while compiling or running."""
    return _OUT_OF_MEMORY.search(" ".join(map(str, error.args))) is not None


def _know_out_of_memory(module: Any) -> None:
    """Patch accelerate's check wherever it is imported: accelerate knows CUDA's messages, not XLA's."""
    original = module.should_reduce_batch_size
    if getattr(original, "knows_xla", False):
        return

    @functools.wraps(original)
    def should_reduce_batch_size(exception: Exception) -> bool:
        return bool(original(exception)) or is_out_of_memory(exception)

    should_reduce_batch_size.knows_xla = True  # type: ignore[attr-defined]
    module.should_reduce_batch_size = should_reduce_batch_size


@dataclass(frozen=True)
class InitialState:
    """The initial state of a Trainer: its tensors by name, in host memory, and the device's seed."""

    tensors: Mapping[str, Any]
    seed: int | None


def _start_again_whole(module: Any) -> None:
    """Each new batch size starts from the weights that the first one started from.

    After a step that ran out of memory, XLA has lost every tensor that this step would have written, including weights
    and optimizer state ("Trying to access XLA data for tensor ... while an async operation is in flight"). So a copy is
    kept in host memory, only while a batch size is searched for.
    """
    cls = module.Trainer
    original = cls._inner_training_loop

    @functools.wraps(original)
    def one_attempt(trainer: Any, batch_size: int | None = None, *args: Any, **kwargs: Any) -> Any:
        if trainer.args.auto_find_batch_size and batch_size is not None:
            _prepare_attempt(trainer, batch_size)
        result = original(trainer, batch_size, *args, **kwargs)
        trainer._tpu_magics_beginning = None
        return result

    cls._inner_training_loop = one_attempt


def _prepare_attempt(trainer: Any, batch_size: int) -> None:
    before = trainer._train_batch_size
    if batch_size >= before:  # the first
        trainer._tpu_magics_beginning = _beginning(trainer.model)
        return
    write(events.Warned, code="smaller-batch", text=_smaller(before, batch_size))
    gc.collect()  # pending operations of the failed attempt would run with the next one
    _begin_again(trainer, trainer._tpu_magics_beginning)


def _smaller(before: int, now: int) -> str:
    return (
        f"Out of memory with a batch size of {before}. Training starts again with {now}, from the initial weights. "
        "Each batch size compiles its own graphs."
    )


def _beginning(model: Any) -> InitialState:
    from tpu_magics.backends.torch.tensor_transfer import to_cpu

    runtime.settle()
    named = dict(_named_tensors(model))
    return InitialState(dict(zip(named, to_cpu(list(named.values())), strict=True)), runtime.running_seed())


def _begin_again(trainer: Any, beginning: InitialState) -> None:
    lost = {name: tensor for name, tensor in _named_tensors(trainer.model) if on_device(tensor)}
    if not lost.keys() <= beginning.tensors.keys():
        raise _cannot_begin_again()
    for name, tensor in lost.items():
        tensor.data = beginning.tensors[name].to(tensor.device)
        tensor.grad = None
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # inside accelerate's
    if optimizer is not None:
        optimizer.state.clear()
    if beginning.seed is not None and (device := runtime.current()) is not None:
        device.set_seed(beginning.seed)


def _cannot_begin_again() -> TpuMagicsError:
    return TpuMagicsError(
        "The device ran out of memory, and a smaller batch size cannot be tried.",
        "XLA lost the weights in the failed step. They cannot be restored, because the model was wrapped (FSDP) or "
        "changed after training started.",
        "Remove auto_find_batch_size and set a smaller per_device_train_batch_size (increase "
        "gradient_accumulation_steps to keep the same effective batch size).",
    )


def _named_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
