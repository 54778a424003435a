"""Variants of a step side by side: other values of a name or another precision, gradient checkpointing, a mesh.

`--compare batch=32,64,128 precision=fp32,bf16` compiles each combination, `--mesh data=8 data=4,model=2` each mesh, in
which one process drives all devices, and its batch is that of all (SPMD). What a variant changes is changed for its
trace alone: no code, no variable and no model of the notebook is another one afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tpu_magics.backends.base import MESH, MESH_AXES, OFF, ON, REMAT
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.options import ALL_DEVICES, PRECISION_NAMES, Options
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
        """The axis in "batch=32,64". Raises TpuMagicsError where it has another form."""
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


MeshAxes = tuple[tuple[str, int], ...]  # and their sizes


def parse_mesh(text: str) -> MeshAxes:
    """The axes in "data=4,model=2". Raises TpuMagicsError where it has another form."""
    pairs = [one.partition("=") for one in text.split(",")]
    names = [name for name, _, _ in pairs]
    known = set(names) <= set(MESH_AXES) and len(set(names)) == len(names)
    if known and all(size.isdecimal() and int(size) for _, _, size in pairs):
        return tuple((name, int(size)) for name, _, size in pairs)
    where = "" if "=" in text else " Put the function and its arguments before --mesh."
    raise TpuMagicsError(
        f"--mesh {text} is no mesh.",
        f"A mesh is AXIS=SIZE,AXIS=SIZE, each axis once, and the axes are {', '.join(MESH_AXES)}.{where}",
        "data shards the batch, fsdp the batch and the parameters, model the features of layers. For example: --mesh "
        "data=8 fsdp=8 data=4,model=2",
    )


def require_meshes(meshes: Sequence[MeshAxes], targets: Sequence[Target]) -> None:
    """Raise TpuMagicsError for a mesh of which no target has the devices, and for a target that has those of none."""
    lonely = [mesh for mesh in meshes if not any(_has_devices(mesh, target) for target in targets)]
    without = [target for target in targets if meshes and first_mesh(meshes, target) is None]
    if not lonely and not without:
        return
    devices = ", ".join(f"{one.name} has {one.devices}" for one in targets)
    one = without[0] if without else targets[0]
    raise TpuMagicsError(
        f"--mesh {_written(lonely[0])} has {_devices(lonely[0])} devices." if lonely else f"No mesh suits {one.name}.",
        f"The product of a mesh's sizes has to be the number of a target's devices: {devices}.",
        f"For example: --mesh data={one.devices} fsdp={one.devices}",
    )


def first_mesh(meshes: Sequence[MeshAxes], target: Target) -> MeshAxes | None:
    """The first that has the devices of this target."""
    return next((mesh for mesh in meshes if _has_devices(mesh, target)), None)


def on_mesh(call: TrainingCall, options: Options, mesh: MeshAxes) -> tuple[TrainingCall, Options]:
    """The call in one process that drives all devices as this mesh; unchanged where it is empty."""
    if not mesh:
        return call, options
    change = f"{MESH}={_written(mesh).replace('=', ':')}"
    return replace(call, changes=(*call.changes, change)), replace(options, spmd=ALL_DEVICES, processes=None)


def _devices(mesh: MeshAxes) -> int:
    return math.prod(size for _, size in mesh)


def _has_devices(mesh: MeshAxes, target: Target) -> bool:
    return not mesh or _devices(mesh) == target.devices


def _written(mesh: MeshAxes) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)


def variants(axes: Sequence[Axis], meshes: Sequence[MeshAxes] = ()) -> tuple[Variant, ...]:
    """All combinations. Raises TpuMagicsError where there are too many."""
    names = [axis.name for axis in axes]
    if again := next((name for name in names if names.count(name) > 1), ""):
        raise TpuMagicsError(
            f"--compare has {again} twice.", "Each name has one list of values.", f"Write {again}=VALUE,VALUE,... once."
        )
    combined = [dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    found = [_variant(values, mesh) for mesh in meshes or ((),) for values in combined]
    if len(found) > MOST:
        raise TpuMagicsError(
            f"--compare has {len(found)} combinations.",
            f"Each is traced and compiled, which takes up to minutes; at most {MOST} are compared.",
            "Compare fewer values or meshes, or one name after the other.",
        )
    return tuple(found)


def _variant(values: Mapping[str, str], mesh: MeshAxes) -> Variant:
    sizes = tuple((name, int(value)) for name, value in values.items() if name not in (PRECISION, REMAT))
    changes = tuple(f"{REMAT}={value}" for name, value in values.items() if name == REMAT)
    label = ", ".join([*([_written(mesh)] if mesh else []), *(f"{name}={value}" for name, value in values.items())])
    return Variant(label, sizes, values.get(PRECISION, ""), changes, mesh)


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
    """Trace each, and compile what later steps run, for the targets that have the devices of its mesh. Names of the
    notebook have a variant's values while it is traced. A variant with which the function does not run has its error.
    """

    def result_of(variant: Variant) -> VariantResult:
        changed, wanted = on_mesh(call, options, variant.mesh)
        changed = replace(changed, changes=(*changed.changes, *variant.changes))
        with _with_sizes(changed, variant.sizes, namespace) as sized:
            made = pipeline(sized, replace(wanted, precision=variant.precision or options.precision))
            made.callbacks.line(f"{call.name}: {variant.label}")
            suited = (target for target in targets if _has_devices(variant.mesh, target))
            try:
                return VariantResult(variant, tuple(made.result(target, later=True) for target in suited))
            except KeyboardInterrupt:
                raise  # TrainingInterrupted is a TpuMagicsError, too
            except TpuMagicsError as error:
                return VariantResult(variant, error=error.what)

    return map(result_of, found)
