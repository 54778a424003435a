"""torch_xla's own TPU branch on a machine without a TPU: its workers are told PJRT_DEVICE=TPU, and XLA:CPU takes
libtpu's place (backends/pjrt_stand_in.py). So torch_xla, accelerate, transformers and Lightning do what they do on a
TPU wherever they ask for one. A worker that traces runs nothing: there it is enough that torch_xla says TPU."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from tpu_magics.backends import pjrt_stand_in
from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.worker import only_errors
from tpu_magics.errors import TpuMagicsError

VERSION = "2.9"  # of torch_xla, the last one
# What a TPU VM has in its environment for a worker with one chip: torch_xla then asks neither the metadata server nor
# the runtime for a topology. None: variables of Colab's and Kaggle's images, and of torch_xla's own launcher.
_VARIABLES: Mapping[str, str | None] = {
    "PJRT_DEVICE": "TPU",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
    "TPU_HOST_BOUNDS": None,
    "TPU_VISIBLE_CHIPS": None,
    "TPU_VISIBLE_DEVICES": None,
    "TPU_PROCESS_ADDRESSES": None,
    "TPU_PROCESS_PORT": None,
    "CLOUD_TPU_TASK_ID": None,
}


# A compile option of libtpu's, which XLA:CPU does not know (torch_xla 2.9: pjrt_computation_client.cpp).
_LIBTPUS: Mapping[str, str | None] = {"ENABLE_COLLECTIVE_MATMUL_IN_MP": None}


def load(asked: bool) -> bool:
    """Load and adapt the plugin in the notebook's process, whose forks inherit it. No runtime starts. False if it was
    not `asked` for and nothing is installed that it would be for, or from.

    Raises:
        TpuMagicsError: there is no plugin, or it does not fit, or torch_xla is another one.
    """
    try:
        version = metadata.version("torch_xla")
    except metadata.PackageNotFoundError:
        version = "missing"
    if not asked and (version == "missing" or not pjrt_stand_in.is_installed()):
        return False
    if not version.startswith(f"{VERSION}."):
        raise TpuMagicsError(
            f"torch_xla's TPU branch cannot be rehearsed here: torch_xla is {version}.",
            f"XLA's plugin for the CPU was tried with torch_xla {VERSION}, the last one.",
            f"Install torch_xla {VERSION}.0 with torch {VERSION}.0, then restart the kernel.",
        )
    pjrt_stand_in.load(pjrt_stand_in.TORCH_XLA)
    return True


def _ask_anew(module: Any) -> None:
    """accelerate (1.15) keeps the answer to "is this a TPU?": the notebook may have asked, before there was one."""
    question = module.is_torch_xla_available
    while question is not None and not hasattr(question, "cache_clear"):  # cpu_only.py wraps it
        question = getattr(question, "__wrapped__", None)
    if question is not None:
        question.cache_clear()


def variables(spec: WorkerSpec) -> Mapping[str, str | None]:
    """The variables of a worker on the TPU branch without a TPU; of others, what XLA:CPU cannot do."""
    if spec.device == spec.branch:
        return _LIBTPUS if spec.device == "CPU" else {}
    tracing = {} if spec.in_tpus_place else {"PJRT_DEVICE": spec.device}
    chips = spec.spmd or spec.ranks
    return {**_VARIABLES, **_LIBTPUS, "TPU_ACCELERATOR_TYPE": f"v5litepod-{chips}", **tracing}


def enter(spec: WorkerSpec) -> None:
    """Put the plugin in libtpu's place in a worker, before its runtime starts."""
    if spec.in_tpus_place:
        pjrt_stand_in.replace_libtpu(pjrt_stand_in.TORCH_XLA, devices=spec.spmd or 1)
        only_errors()  # torch_xla warns that the plugin has no profiler
        PostImport().when_imported("torch_xla._internal.tpu", _has_chips)
        PostImport().when_imported("torch_xla.debug.profiler", _refuse_profiler)
    elif spec.device != spec.branch:
        PostImport().when_imported("torch_xla.runtime", _say_type)
        PostImport().when_imported("torch_xla.core.xla_model", _say_hardware)
    if spec.branch != spec.device:
        PostImport().when_imported("torch_xla.runtime", _has_places)
    PostImport().when_imported("accelerate.utils.imports", _ask_anew)


def arrange(spec: WorkerSpec) -> None:
    """What a TPU's lowerings need here. The runtime is up."""
    from tpu_magics.backends.torch_xla import tpu_kernels

    if spec.branch != "TPU":
        return
    if spec.device == "CPU" and not spec.in_tpus_place:
        tpu_kernels.as_on_tpu()
        return
    tpu_kernels.correct()
    if spec.in_tpus_place and spec.tracing is None:
        tpu_kernels.without_libtpu()


def _has_chips(module: Any) -> None:
    """Show as many chips as the type of the TPU has: torch_xla 2.9 counts those that PCI shows."""
    prefix, _, number = os.environ["TPU_ACCELERATOR_TYPE"].rpartition("-")
    chips = int(number) if prefix in ("v5litepod", "v6e") else int(number) // 2  # the others' types count TensorCores
    module.num_available_chips = lambda: chips


def _has_places(module: Any) -> None:
    """Attributes of devices by the names that a TPU's have (torch_xla 2.9: its test_runtime_tpu.py): HybridMesh
    arranges chips by their coordinates. The plugin has none; these are those of one slice."""

    def every() -> list[dict[str, Any]]:
        count = module.global_runtime_device_count()
        width = next(width for width in range(math.isqrt(count), 0, -1) if count % width == 0)
        chip = {"core_on_chip": 0, "num_cores": 1}
        return [{"name": f"TPU:{n}", "coords": [n % width, n // width, 0], **chip} for n in range(count)]

    def own(device: str) -> dict[str, Any]:  # noqa: ARG001 - a process of ranks has one
        found = every()[module.global_ordinal()].items()
        return {name: value for name, value in found if name != "name"}

    module.global_runtime_device_attributes, module.runtime_device_attributes = every, own


def _say_type(module: Any) -> None:
    module.device_type = lambda: "TPU"


def _say_hardware(module: Any) -> None:
    module.xla_device_hw = lambda device: "TPU" if str(device).startswith("xla") else "CPU"


def start(local_rank: int, local_world_size: int) -> None:
    """How the runtime starts for `_run_thread_per_device`: as with torch_xla's own launcher, but without asking for the
    topology of a host with several chips."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla._internal import pjrt

    pjrt._initialize_single_process(local_rank, local_world_size)
    if not xr.is_spmd():
        xm.set_replication(torch_xla.device(), xm.get_xla_supported_devices() if local_world_size > 1 else [])


def _refuse_profiler(module: Any) -> None:
    """The plugin has no profiler: torch_xla 2.9 would end the process (SIGSEGV)."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise TpuMagicsError(
            "torch_xla's profiler was called, which a rehearsal of the TPU branch does not have.",
            "XLA's plugin for the CPU, which is in libtpu's place, has no profiler.",
            "Leave the call out here, or rehearse with %tpu_init --no-tpu-branch; on a TPU it works.",
        )

    for name in ("start_server", "start_trace", "stop_trace", "trace", "trace_detached"):
        if hasattr(module, name):
            setattr(module, name, refuse)
