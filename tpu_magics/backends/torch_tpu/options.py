"""Options that TorchTPU does not support. Imports no framework."""

from __future__ import annotations

from tpu_magics.errors import TpuMagicsError

# Options that TorchTPU has no counterpart of, or with which it was not tried: what, why, what to do.
_REFUSED = {
    "spmd": (
        "--spmd is not supported with TorchTPU.",
        "It makes torch_xla drive several devices from one process. TorchTPU has one process for each device, and "
        "shards with torch.distributed's DTensor.",
        "Omit --spmd.",
    ),
    "downcast": (
        "--precision bf16-downcast is not supported with TorchTPU.",
        "It is a setting of torch_xla for double and float.",
        "Use --precision bf16: the function runs under torch.autocast, with float32 weights.",
    ),
    "cache": (
        "--cache is not supported with TorchTPU.",
        "It stores programs compiled by torch_xla. torch.compile keeps its own on the disk, without an option.",
        "Omit --cache.",
    ),
    "hosts": (
        "--hosts is not supported with TorchTPU yet.",
        "Runs on many hosts are launched and tested with torch_xla only.",
        "Omit --hosts, or train with torch_xla: pip install 'tpu-magics[torch,pods]' in an environment of its own.",
    ),
}


def refuse(precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> None:
    """Raise TpuMagicsError for options that are not supported."""
    asked = {
        "spmd": spmd is not None,
        "downcast": precision == "bf16-downcast",
        "cache": cache not in ("", "off"),
        "hosts": hosts not in ("", "off"),
    }
    for what in (name for name, given in asked.items() if given):
        raise TpuMagicsError(*_REFUSED[what])
