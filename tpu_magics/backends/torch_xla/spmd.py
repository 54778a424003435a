"""A worker that drives many devices as a mesh (SPMD): its start, the global mesh, and how parameters are sharded.

On XLA:CPU the devices are parts of the host's CPU. The collectives between them are in the graph, as on a TPU.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch.worker import only_errors
from tpu_magics.errors import TpuMagicsError

AXES = ("data", "model")
# A tensor's sharding as torch_xla 2.9.0 writes it, e.g. "{devices=[8,1]0,1,2,3,4,5,6,7}" or, where each part lies on
# several devices, "{devices=[4,1,2]0,1,... last_tile_dim_replicate}".
_TILES = re.compile(r"\{devices=\[([\d,]+)\]([^}]*(?:\{[^}]*\})?)")
_WHOLE = re.compile(r"|\{replicated\}|\{maximal device=\d+\}")
_VARIABLE = "XLA_USE_SPMD"


# -- the start ---------------------------------------------------------------------------------------------------------
def refuse_leftover(spec: WorkerSpec) -> None:
    """Raise TpuMagicsError if a worker that is not an SPMD worker inherited the variable that makes it one."""
    import torch_xla.runtime as xr

    if spec.spmd is None and xr.is_spmd():
        raise TpuMagicsError(
            f"{_VARIABLE} is set in the notebook, but this run does not use SPMD.",
            "xr.use_spmd() sets it, and workers inherit it. torch_xla would treat each worker as an SPMD process "
            "with all devices.",
            f"Train with --spmd, or unset it in the notebook: os.environ.pop({_VARIABLE!r}, None)",
        )


def refuse_later() -> None:
    """In a worker whose runtime has started without SPMD: the code cannot turn it on any more. (torch_xla 2.9 lets it,
    and crashes in the first step.)"""
    import torch_xla.runtime as xr

    def use_spmd(auto: bool = False) -> None:  # noqa: ARG001
        raise TpuMagicsError(
            "The code calls use_spmd(), but this run does not use SPMD.",
            "Each worker has started with one device, and cannot change that.",
            "Train with --spmd: one worker then drives all devices. (-n starts one process for each rank.)",
        )

    xr.use_spmd = use_spmd


def arrange(spec: WorkerSpec) -> None:
    """Make this process an SPMD one, before its runtime starts (for a worker with `spec.spmd`)."""
    import torch_xla.runtime as xr

    if spec.device == "CPU":
        os.environ["CPU_NUM_DEVICES"] = str(spec.spmd)
    only_errors()
    os.environ.pop(_VARIABLE, None)  # else use_spmd(), which sets it, warns that the notebook has set it
    use_spmd = xr.use_spmd
    use_spmd()
    xr.use_spmd = lambda auto=False: use_spmd(auto) if auto else None  # the code may call it again: it would warn


def start(local_rank: int, local_world_size: int) -> None:
    """How the runtime starts for `_run_thread_per_device`: all devices stay visible to this one process.

    torch_xla 2.9.0 uses it for its own threads (pjrt.spawn_threads). Its two other ways to start give each process one
    chip of a TPU.
    """
    from torch_xla._internal import pjrt

    pjrt._initialize_single_process(local_rank, local_world_size)


def make_mesh(spec: WorkerSpec) -> None:
    """Set a mesh (devices, 1) named ("data", "model") as `xs.get_global_mesh()`, once the runtime is running.

    Raises:
        TpuMagicsError: the runtime does not have the requested devices.
    """
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    found = xr.global_runtime_device_count()
    if spec.spmd and spec.spmd != found:
        raise TpuMagicsError(
            f"--spmd {spec.spmd} was requested, but the runtime has {found} devices.",
            "An SPMD worker uses all devices that it sees. A variable such as TPU_VISIBLE_CHIPS hides some of them.",
            "Unset that variable in the notebook, or give no number (%%tpu_train --spmd): then all visible devices are "
            "used.",
        )
    mesh = xs.Mesh(list(range(found)), (found, 1), AXES)
    xs.set_global_mesh(mesh)
    _meshes.default = mesh
    _follow_meshes()


@dataclass
class _Meshes:
    """`default`: that of `make_mesh`; `own`: the last one that sharded a tensor, and was not the global one."""

    default: Any = None
    own: Any = None


_meshes = _Meshes()  # of this process


def _follow_meshes() -> None:
    """A function may shard by a mesh of its own that it does not set as the global one."""
    import torch_xla.distributed.spmd as xs

    original = xs.Mesh.get_op_sharding

    @functools.wraps(original)
    def get_op_sharding(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not xs.get_global_mesh():
            _meshes.own = self
        return original(self, *args, **kwargs)

    xs.Mesh.get_op_sharding = get_op_sharding


# -- what lies on the devices ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ShardingSummary:
    """How parameters are sharded: how many are sharded and how many are replicated, with their bytes as whole tensors;
    `unknown`: a sharding that could not be read, or ""."""

    sharded: int = 0
    replicated: int = 0
    sharded_bytes: int = 0
    replicated_bytes: int = 0
    unknown: str = ""


def mesh_axes(in_order: bool = False) -> tuple[tuple[str, int], ...]:
    """The axes of the mesh in use, "" for those without a name, and their sizes; empty where there is no mesh, or with
    `in_order` where its devices are not in the order of their numbers, so that groups of devices do not tell axes."""
    import torch_xla.distributed.spmd as xs

    mesh = xs.get_global_mesh()
    if mesh is _meshes.default and _meshes.own is not None:
        mesh = _meshes.own
    if mesh is None or (in_order and list(mesh.device_ids) != sorted(mesh.device_ids)):
        return ()
    names = mesh.axis_names or [""] * len(mesh.mesh_shape)
    return tuple((str(name), int(size)) for name, size in zip(names, mesh.mesh_shape, strict=True))


def mesh_fields(device: str) -> dict[str, Any]:
    """The current fields of events.Mesh, between two steps; `device`: "CPU" or "TPU"."""
    import torch_xla.runtime as xr

    axes = mesh_axes()
    found = spread(parameters_on_device())
    counts = {} if found.unknown else {"sharded": found.sharded, "replicated": found.replicated}
    sizes = {} if found.unknown else {n: getattr(found, n) for n in ("sharded_bytes", "replicated_bytes")}
    return {
        "shape": tuple(size for _, size in axes),
        "axes": tuple(name for name, _ in axes if name),
        "devices": xr.global_runtime_device_count(),
        "virtual": device == "CPU",
        **counts,
        **sizes,
        "text": f"the sharding of a parameter could not be read: {found.unknown}" if found.unknown else "",
    }


def parameters_on_device() -> Iterator[Any]:
    """Every parameter on the devices.

    They are found among all live objects: the function may have created its models itself, including frozen parts that
    no optimizer and no argument has. Objects from before the fork are not listed (process.py freezes them): of those,
    only parameters that moved, and stayed the same objects, are on the device.
    """
    import torch

    from tpu_magics.backends.torch_xla.trace.live_tensors import outer_tensors

    return iter({id(one): one for one in outer_tensors() if isinstance(one, torch.nn.Parameter)}.values())


def spread(parameters: Iterable[Any]) -> ShardingSummary:
    """The sharding of these parameters."""
    import torch_xla

    counts, sizes = {True: 0, False: 0}, {True: 0, False: 0}
    for parameter in parameters:
        text = torch_xla._XLAC._get_xla_sharding_spec(parameter)  # 2.9.0; "" without an annotation
        split = is_split(text)
        if split is None:
            return ShardingSummary(unknown=text)
        counts[split] += 1
        sizes[split] += parameter.numel() * parameter.element_size()
    return ShardingSummary(counts[True], counts[False], sizes[True], sizes[False])


def is_split(sharding: str) -> bool | None:
    """Whether a tensor with this sharding is sharded over devices; None if the text is unknown."""
    if _WHOLE.fullmatch(sharding):
        return False
    found = _TILES.match(sharding)
    if not found:
        return None
    tiles = [int(size) for size in found[1].split(",")]
    if "last_tile_dim_replicate" in found[2]:
        tiles.pop()
    return max(tiles, default=1) > 1


def nothing_split() -> str:
    """The warning that nothing in this process has a sharding; "" if something has, or there is one device."""
    import torch_xla.runtime as xr

    from tpu_magics.backends.torch_xla.observe import counters

    devices = xr.global_runtime_device_count()
    if devices == 1 or counters.counter("CreateOpSharding"):
        return ""
    return (
        f"Nothing was sharded over the {devices} devices: each device did all of the work. Add a sharding, e.g. "
        'xs.mark_sharding(batch, xs.get_global_mesh(), ("data", None)), or an input_sharding for the loader.'
    )
