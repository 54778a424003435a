"""transformers' Trainer in a worker: records its values, and makes auto_find_batch_size work.

transformers 5.23.0 (trainer.py) and accelerate 1.15.0 (utils/memory.py).
"""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Iterator, Mapping
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
    hook.when_imported("accelerate.checkpointing", _load_models)
    hook.when_imported("transformers.trainer", _change_trainer)


def _change_trainer(module: ModuleType) -> None:
    changes = (_know_out_of_memory, _record_values, _start_again_whole, _load_random_states)
    for change in (*changes, trainer_progress.follow):
        with suppress(AttributeError):  # another version without this; the others still apply
            change(module)


def _load_models(module: Any) -> None:
    """`load_state` reads weights with safetensors' load_model, which cannot read a device's memory (0.6:
    "Attempted to access the data pointer on an invalid python storage")."""
    original = module.load_model

    @functools.wraps(original)
    def load_model(model: Any, filename: Any, strict: bool = True, device: Any = "cpu") -> Any:
        named = model.state_dict(keep_vars=True)
        if not any(map(on_device, named.values())):
            return original(model, filename, strict=strict, device=device)
        from safetensors.torch import load_file

        state = load_file(filename)
        for name, tensor in named.items():  # tied weights are saved once, under one of their names
            same = next((other for other in state if named.get(other) is tensor), None)
            if name not in state and same is not None:
                state[name] = state[same]
        return model.load_state_dict(state, strict=strict)

    module.load_model = load_model


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
    """Of this rank's records; None if nothing is recorded."""
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
