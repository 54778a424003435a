"""The environment variables of a compile process."""

from __future__ import annotations

import os
import site
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpu_magics.preflight.targets import Target

__all__ = ["ENVIRONMENT", "environment", "flags_left_out", "torch_xla_flags"]

# In which libtpu compiles for a TPU that is not here, and looks for none.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # What libtpu takes this host for. With v4, v5p or v6e here, the cost analysis of libtpu 0.0.21.1 ends the process
    # ("File not found: .../tpu_chip_config_memfile_megachip_tccontrol"). The answers for a topology do not depend on
    # it: those for v2, v4 and v6e came out the same with four values and none, from 0.0.21.1 and 0.0.52.
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    # Otherwise "Internal error when accessing libtpu multi-process lockfile" as long as any other process of this host
    # has libtpu loaded, be it to compile (seen with 0.0.21.1 and 0.0.52). torch_xla sets it too.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# Prefixes of names that a host, a framework or the user set for other processes: flags change programs, and the
# variables of a real TPU would make libtpu look for it.
NOT_INHERITED = (
    *("ALLOW_MULTIPLE_LIBTPU_LOAD", "CLOUD_TPU_", "ENABLE_PJRT", "ENABLE_RUNTIME_", "ENABLE_TFRT_", "ENABLE_TPU"),
    *("JAX_", "JAXLIB_", "LIBTPU_", "MEGASCALE_", "PJRT_", "PT_XLA_", "PTXLA_", "TF_", "TPU_", "VBAR_", "XLA_", "XRT_"),
)
# Older names of what begins with TPU_ today; libtpu 0.0.21.1 and 0.0.52 read them, and end at what they do not like.
NOT_INHERITED_EITHER = ("ALT", "CHIPS_PER_HOST_BOUNDS", "HOST_BOUNDS", "WRAP")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# What torch_xla itself puts into them when it is imported (torch_xla/__init__.py, 2.9.0): on any host, on one with a
# TPU, and on one with a TPU of the fifth generation.
_TORCH_XLA = ("--xla_cpu_enable_fast_math=false",)
_TORCH_XLA_ON_TPU = (
    "--xla_tpu_use_enhanced_launch_barrier=false",
    "--xla_latency_hiding_scheduler_rerun=1",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
    "--xla_tpu_enable_flash_attention=false",
)
_TORCH_XLA_ON_V5 = ("--xla_enable_async_all_gather=true", "--xla_enable_async_collective_permute=true")
_SET_BY_TORCH_XLA = frozenset((*_TORCH_XLA, *_TORCH_XLA_ON_TPU, *_TORCH_XLA_ON_V5))
_ROOT = Path(__file__).resolve().parents[2]


def torch_xla_flags(target: Target) -> tuple[str, ...]:
    """The flags that torch_xla sets for compiles on that TPU.

    Without them libtpu makes attention one kernel that keeps no scores, which torch_xla turns off: for f32 attention of
    8 x 12 x 2048 x 64 on a v5e the program needs 1813 MB with them and 505 MB without (libtpu 0.0.52; 0.0.21.1: the
    same to 1 MB).
    """
    return (*_TORCH_XLA_ON_TPU, *(_TORCH_XLA_ON_V5 if target.generation.startswith("v5") else ()))


def environment(
    given: Mapping[str, str], folder: Path, packages: Sequence[str], flags: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of the process: those of this one, without those that would change the compile, and the TPU's.
    `flags`: for libtpu."""
    kept = {
        name: value
        for name, value in given.items()
        if not name.startswith(NOT_INHERITED) and name not in NOT_INHERITED_EITHER
    }
    path = [*packages, *kept.get("PYTHONPATH", "").split(os.pathsep), *(() if _installed() else (str(_ROOT),))]
    absolute = [str(Path(one).absolute()) for one in path if one]  # its working directory is another
    return {
        **kept,
        **ENVIRONMENT,
        **({"LIBTPU_INIT_ARGS": " ".join(flags)} if flags else {}),
        "PYTHONPATH": os.pathsep.join(absolute),
        "TMPDIR": str(folder),
        "TPU_LOG_DIR": str(folder / "logs"),  # otherwise /tmp/tpu_logs, which is never emptied
    }


def flags_left_out(given: Mapping[str, str]) -> tuple[str, ...]:
    """Notes about the user's compiler flags, which the process does not get."""
    found = ((name, [one for one in given.get(name, "").split() if one not in _SET_BY_TORCH_XLA]) for name in FLAGS)
    return tuple(
        f"{name} ({' '.join(flags)}) was ignored in this compile; a run with it may compile a different program"
        for name, flags in found
        if flags
    )


def _installed() -> bool:
    """Whether the interpreter finds this package without PYTHONPATH."""
    return str(_ROOT) in (*site.getsitepackages(), site.getusersitepackages())
