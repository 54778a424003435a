"""Makes an Accelerator on XLA:CPU apply `mixed_precision` and `downcast_bf16` as on a TPU.

accelerate 1.15.0. state.py, AcceleratorState: with mixed_precision="bf16" it sets XLA_USE_BF16, or XLA_DOWNCAST_BF16 if
ACCELERATE_DOWNCAST_BF16 is not empty, but only on a TPU. accelerator.py: only on XLA:CPU, `native_amp` makes it use
autocast instead; fp16 raises ValueError only on a TPU. `downcast_bf16`, which its guide shows, is no longer an
argument.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tpu_magics.backends.torch_xla import precision_request
from tpu_magics.backends.torch_xla.precision_request import PrecisionRequest

OnDecision = Callable[[PrecisionRequest, str], None]


def patch_accelerator(Accelerator: Any, option: str, on_decision: OnDecision) -> None:
    """From now on, every Accelerator sets torch_xla's variables. For each one that decides anew,
    `on_decision(request, before)` is called, where `before` is the precision that the variables set until then."""
    start = Accelerator.__init__
    signature = inspect.signature(start)
    if "mixed_precision" not in signature.parameters:
        return

    def with_precision(self: Any, *args: Any, **kwargs: Any) -> None:
        given = _AcceleratorCall(signature, args, kwargs)
        if not given.decides() and _is_decided():
            given.start(start, self)
        else:
            _start_first(start, self, given, option, on_decision)
        _as_on_a_tpu(self)

    Accelerator.__init__ = with_precision


def _start_first(
    start: Callable[..., None], accelerator: Any, given: _AcceleratorCall, option: str, on_decision: OnDecision
) -> None:
    """Create the Accelerator that decides the precision for all of them."""
    request = precision_request.with_accelerate(given.mixed, given.downcast, given.who(), option, os.environ)
    if request.precision == "fp16" and not given.kwargs.get("cpu"):
        raise precision_request.no_fp16(request.source)
    if given.mixed is None and option and os.environ.get(precision_request.MIXED_VARIABLE):
        given.say("no" if option == "fp32" else "bf16")  # otherwise accelerate would use its variable
    before = precision_request.in_force(os.environ)
    wide = request.precision == "bf16-downcast"
    with _variable(precision_request.DOWNCAST_VARIABLE, "1" if wide else ""):
        given.start(start, accelerator)
    if accelerator.device.type != "xla":
        return
    os.environ.update(precision_request.variables(request.precision, os.environ))
    if request.precision.startswith("bf16"):
        accelerator.state.downcast_bfloat = wide
    on_decision(request, before)


class _AcceleratorCall:
    """The arguments of one call of `Accelerator(...)`."""

    def __init__(self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs = dict(kwargs)
        self.downcast: bool | None = None
        if "downcast_bf16" in kwargs and "downcast_bf16" not in signature.parameters:
            self.downcast = _is_yes(kwargs.pop("downcast_bf16"))
        self.trainer = _trainer_arguments()
        self.args, self.kwargs = args, kwargs
        self.place = list(signature.parameters).index("mixed_precision") - 1  # without self
        self.mixed = self._explicit()

    def _explicit(self) -> str | None:
        if self.trainer is not None:  # the Trainer always passes one: "no" if there is no request
            return next((name for name in ("fp16", "bf16") if getattr(self.trainer, name, False)), None)
        value = self.args[self.place] if len(self.args) > self.place else self.kwargs.get("mixed_precision")
        return None if value is None else str(value).lower()

    def decides(self) -> bool:
        """Whether the call itself sets a precision."""
        return self.mixed is not None or self.downcast is not None

    def say(self, mixed: str) -> None:
        """Pass this value instead."""
        if len(self.args) > self.place:
            self.args = (*self.args[: self.place], mixed, *self.args[self.place + 1 :])
        else:
            self.kwargs["mixed_precision"] = mixed

    def who(self) -> str:
        """The call as the user wrote it, only with its precision arguments."""
        if self.trainer is not None:
            return f"TrainingArguments({self.mixed}=True)"
        mixed = "" if self.mixed is None else f'mixed_precision="{self.mixed}"'
        downcast = "" if self.downcast is None else f"downcast_bf16={self.downcast}"
        return f"Accelerator({', '.join(one for one in (mixed, downcast) if one)})"

    def start(self, start: Callable[..., None], accelerator: Any) -> None:
        """Call the original."""
        start(accelerator, *self.args, **self.kwargs)


def _is_yes(value: object) -> bool:
    return str(value).strip().lower() in ("true", "yes", "y", "on", "1", "t")


_renewed: list[Any] = []


@contextmanager
def for_trainer(arguments: Any) -> Iterator[None]:
    """An Accelerator created within it belongs to the Trainer with these TrainingArguments (None: to no Trainer)."""
    _renewed.append(arguments)
    try:
        yield
    finally:
        _renewed.pop()


def _trainer_arguments() -> Any:
    """The TrainingArguments, if transformers' Trainer creates the Accelerator."""
    if _renewed:
        return _renewed[-1]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("tpu_magics."):
        frame = frame.f_back
    if frame is None or not str(frame.f_globals.get("__name__", "")).startswith("transformers."):
        return None
    return getattr(frame.f_locals.get("self"), "args", None)


def _is_decided() -> bool:
    """Whether an earlier Accelerator has set the precision: they share their state."""
    from accelerate.state import AcceleratorState

    return bool(AcceleratorState._shared_state)


def _as_on_a_tpu(accelerator: Any) -> None:
    """No autocast in addition to the variables: an Accelerator on a TPU has none either."""
    if accelerator.device.type == "xla" and accelerator.mixed_precision == "bf16":
        accelerator.native_amp = False


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Within it, the variable has another value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
