"""Variants of a step side by side: other values of a name, another precision, gradient checkpointing on or off.

`--compare batch=32,64,128 precision=fp32,bf16` compiles each combination. What a variant changes is changed for its
trace alone: no code, no variable and no model of the notebook is another one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tpu_magics.backends.base import OFF, ON, REMAT
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.plan import PRECISION_NAMES, Options
from tpu_magics.preflight.fit import Size
from tpu_magics.preflight.pipeline import PreflightPipeline, TrainingCall
from tpu_magics.preflight.report import Variant, VariantResult
from tpu_magics.preflight.targets import Target

PRECISION = "precision"
MOST = 24  # combinations: each is a trace, and a compile for each target


@dataclass(frozen=True)
class Axis:
    """What is varied: a name and its values, as they were written."""

    name: str
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Axis:
        """Of "batch=32,64". Raises TpuMagicsError where it has another form."""
        name, _, values = text.partition("=")
        found = tuple(dict.fromkeys(one.strip() for one in values.split(",") if one.strip()))
        known = {PRECISION: PRECISION_NAMES, REMAT: (ON, OFF)}.get(name)
        wrong = [one for one in found if (one not in known if known else not one.isdecimal())]
        if name.isidentifier() and found and not wrong:
            return cls(name, found)
        if "=" not in text:
            raise TpuMagicsError(
                f"--compare {text} cannot be compared.",
                "Each word after --compare is NAME=VALUE,VALUE.",
                "Put the function and its arguments before --compare: %tpu_preflight train model --compare batch=32,64",
            )
        what = f"the values are {', '.join(known)}" if known else "the form is NAME=VALUE,VALUE, with whole numbers"
        raise TpuMagicsError(
            f"--compare {text} cannot be compared.",
            f"{wrong[0] if wrong else text!r} cannot be read: {what}.",
            "For example: --compare batch=32,64,128 precision=fp32,bf16 remat=on,off",
        )


def variants(axes: Sequence[Axis]) -> tuple[Variant, ...]:
    """All combinations. Raises TpuMagicsError where there are too many."""
    names = [axis.name for axis in axes]
    if again := next((name for name in names if names.count(name) > 1), ""):
        raise TpuMagicsError(
            f"--compare has {again} twice.", "Each name has one list of values.", f"Write {again}=VALUE,VALUE,... once."
        )
    found = [_variant(dict(zip(names, values, strict=True))) for values in product(*(axis.values for axis in axes))]
    if len(found) > MOST:
        raise TpuMagicsError(
            f"--compare has {len(found)} combinations.",
            f"Each is traced and compiled, which takes up to minutes; at most {MOST} are compared.",
            "Compare fewer values, or one name after the other.",
        )
    return tuple(found)


def _variant(values: Mapping[str, str]) -> Variant:
    sizes = tuple((name, int(value)) for name, value in values.items() if name not in (PRECISION, REMAT))
    changes = tuple(f"{REMAT}={value}" for name, value in values.items() if name == REMAT)
    label = ", ".join(f"{name}={value}" for name, value in values.items())
    return Variant(label, sizes, values.get(PRECISION, ""), changes)


@contextmanager
def _with_sizes(
    call: TrainingCall, sizes: Sequence[tuple[str, int]], namespace: dict[str, Any]
) -> Iterator[TrainingCall]:
    if not sizes:
        yield call
        return
    (name, value), *rest = sizes
    size = Size.of(name, call.function, call.args, call.kwargs, namespace)
    with (
        size.at(value, call.args, call.kwargs) as (args, kwargs),
        _with_sizes(replace(call, args=args, kwargs=kwargs), rest, namespace) as changed,
    ):
        yield changed


def compare(
    call: TrainingCall,
    options: Options,
    found: Sequence[Variant],
    targets: Sequence[Target],
    namespace: dict[str, Any],
    pipeline: Callable[[TrainingCall, Options], PreflightPipeline],
) -> Iterator[VariantResult]:
    """Trace each, and compile what later steps run. Names of the notebook have a variant's values while it is traced. A
    variant with which the function does not run has its error."""

    def result_of(variant: Variant) -> VariantResult:
        with _with_sizes(replace(call, changes=variant.changes), variant.sizes, namespace) as changed:
            made = pipeline(changed, replace(options, precision=variant.precision or options.precision))
            made.callbacks.line(f"{call.name}: {variant.label}")
            try:
                return VariantResult(variant, tuple(made.result(target, later=True) for target in targets))
            except TpuMagicsError as error:
                return VariantResult(variant, error=error.what)

    return map(result_of, found)
