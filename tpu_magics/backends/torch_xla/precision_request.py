"""The requested precision: who requests it, and which request has priority.

From the most to the least specific: an argument of Accelerator (or of TrainingArguments, which creates one); our option
or the session's default; accelerate's variables, which count once there is an Accelerator; torch_xla's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    """The same error on a TPU, where accelerate rejects fp16, and on XLA:CPU, where it does not."""
    return TpuMagicsError(
        f"{who} requests fp16 mixed precision, which TPUs do not support.",
        "TPUs compute in bf16, and accelerate rejects fp16 on them. The same notebook must run the same everywhere, so "
        "fp16 is rejected on XLA:CPU too.",
        'Use bf16, which needs no loss scaling: Accelerator(mixed_precision="bf16"), TrainingArguments(bf16=True) or '
        "%%tpu_train --precision bf16.",
    )
