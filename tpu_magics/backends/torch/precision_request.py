"""The requested precision: who requests it, and which request has priority; an Accelerator on XLA:CPU applies it as on
a TPU.

From the most to the least specific: an argument of Accelerator (or of TrainingArguments, which creates one); our option
or the session's default; accelerate's variables, which count once there is an Accelerator; torch_xla's variables.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from tpu_magics.errors import TpuMagicsError

USE, DOWNCAST = "XLA_USE_BF16", "XLA_DOWNCAST_BF16"
MIXED_VARIABLE, DOWNCAST_VARIABLE = "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DOWNCAST_BF16"
OPTION = "--precision"
OFF = "false"  # for a variable that was already set

# bf16: torch.float and torch.double become bfloat16. bf16-downcast: torch.float bfloat16, torch.double float32.
_ON: Mapping[str, frozenset[str]] = {
    "fp32": frozenset(),
    "bf16": frozenset({USE}),
    "bf16-downcast": frozenset({DOWNCAST}),
}
NAMES: Mapping[str, str] = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}


@dataclass(frozen=True)
class PrecisionRequest:
    """`precision`: "fp32", "bf16", "bf16-downcast", another name that accelerate knows, or "" (no request);
    `source`: who requests it; `notes`: what it overrides."""

    precision: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


def variables(precision: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set in a worker for this precision. A variable that the user set changes only if it
    contradicts."""
    if precision not in _ON:
        return {}
    on = _ON[precision]
    return {
        **dict.fromkeys(sorted(on), "1"),
        **{name: OFF for name in (USE, DOWNCAST) if name not in on and is_on(environment.get(name))},
    }


def is_on(value: str | None) -> bool:
    """Whether torch_xla reads a variable's value as true (2.9.0: csrc/runtime/sys_util.cpp)."""
    text = (value or "").strip()
    digits = text[1:] if text[:1] in ("-", "+") else text
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return text == "true" or bool(number.strip("0"))


def in_force(environment: Mapping[str, str]) -> str:
    """The precision that torch_xla's variables set; "" if none is set."""
    return "bf16" if is_on(environment.get(USE)) else "bf16-downcast" if is_on(environment.get(DOWNCAST)) else ""


def without_accelerate(option: str, environment: Mapping[str, str]) -> PrecisionRequest:
    """The request as long as there is no Accelerator."""
    if option:
        overruled = [name for name in (USE, DOWNCAST) if environment.get(name) == OFF]
        return PrecisionRequest(
            option, OPTION, tuple(f"{OPTION} {option} overrides {name} in the environment." for name in overruled)
        )
    there = in_force(environment)
    return PrecisionRequest(there, {"bf16": USE, "bf16-downcast": DOWNCAST}.get(there, ""))


def with_accelerate(
    mixed: str | None, downcast: bool | None, who: str, option: str, environment: Mapping[str, str]
) -> PrecisionRequest:
    """The request when an Accelerator is created.

    Args:
        mixed: its explicit argument, None if there is none. `who`: how the user wrote it.
        downcast: its argument `downcast_bf16`, None if there is none.
        option: our option or the session's default, "" if there is none.
    """
    wide = bool(environment.get(DOWNCAST_VARIABLE)) if downcast is None else downcast
    if mixed is not None:
        return _overruling(_pointless(PrecisionRequest(_level(mixed, wide), who), mixed, downcast), option, environment)
    by_variable = environment.get(MIXED_VARIABLE, "no").lower()
    before = without_accelerate(option, {**environment, **variables(option, environment)})
    if option or by_variable == "no":
        return _only_downcast(before, downcast, who, option, environment)
    source = DOWNCAST_VARIABLE if wide and downcast is None and by_variable == "bf16" else MIXED_VARIABLE
    return _overruling(PrecisionRequest(_level(by_variable, wide), source), "", environment)


def _only_downcast(
    before: PrecisionRequest, downcast: bool | None, who: str, option: str, environment: Mapping[str, str]
) -> PrecisionRequest:
    """`Accelerator(downcast_bf16=True)` selects the kind of bf16, but does not request bf16."""
    if not before.precision.startswith("bf16"):
        return _pointless(before, before.precision, downcast)
    return _overruling(PrecisionRequest("bf16-downcast", who), option, environment) if downcast else before


def _pointless(request: PrecisionRequest, mixed: str, downcast: bool | None) -> PrecisionRequest:
    if not downcast or mixed == "bf16":
        return request
    return replace(request, notes=(*request.notes, 'downcast_bf16 has no effect without mixed_precision="bf16".'))


def _level(mixed: str, wide: bool) -> str:
    name = NAMES.get(mixed, mixed)
    return "bf16-downcast" if name == "bf16" and wide else name


def _overruling(request: PrecisionRequest, option: str, environment: Mapping[str, str]) -> PrecisionRequest:
    """With a note if it differs from a less specific request."""
    before = without_accelerate(option, environment)
    if before.precision in ("", request.precision):
        return request
    loser = f"{OPTION} {before.precision}" if before.source == OPTION else f"{before.source} in the environment"
    note = f"{request.source} overrides {loser}, because it is more specific."
    return replace(request, notes=(*request.notes, note))


def no_fp16(who: str) -> TpuMagicsError:
    """One error for fp16 on a TPU, where accelerate rejects it, and on XLA:CPU, where it does not."""
    return TpuMagicsError(
        f"{who} requests fp16 mixed precision, which TPUs do not support.",
        "TPUs compute in bf16, and accelerate rejects fp16 on them. The same notebook must run the same everywhere, so "
        "fp16 is rejected on XLA:CPU too.",
        'Use bf16, which needs no loss scaling: Accelerator(mixed_precision="bf16"), TrainingArguments(bf16=True) or '
        "%%tpu_train --precision bf16.",
    )


# -- Accelerators -----------------------------------------------------------------------------------------------------


# accelerate 1.15.0. state.py, AcceleratorState: with mixed_precision="bf16" it sets XLA_USE_BF16, or XLA_DOWNCAST_BF16
# if ACCELERATE_DOWNCAST_BF16 is not empty, but only on a TPU. accelerator.py: only on XLA:CPU, `native_amp` makes it
# use autocast instead; fp16 raises ValueError only on a TPU. `downcast_bf16`, which its guide shows, is no longer an
# argument.

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
    request = with_accelerate(given.mixed, given.downcast, given.who(), option, os.environ)
    if request.precision == "fp16" and not given.kwargs.get("cpu"):
        raise no_fp16(request.source)
    if given.mixed is None and option and os.environ.get(MIXED_VARIABLE):
        given.say("no" if option == "fp32" else "bf16")  # otherwise accelerate would use its variable
    before = in_force(os.environ)
    wide = request.precision == "bf16-downcast"
    with _variable(DOWNCAST_VARIABLE, "1" if wide else ""):
        given.start(start, accelerator)
    if accelerator.device.type != "xla":
        return
    os.environ.update(variables(request.precision, os.environ))
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
        self.trainer = trainer_arguments()
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


def trainer_arguments() -> Any:
    """The TrainingArguments, if transformers' Trainer creates the Accelerator; else None."""
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
