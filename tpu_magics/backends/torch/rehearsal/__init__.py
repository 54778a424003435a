"""What rehearsals of several ranks need with torch_xla and with TorchTPU: gloo, a store in which the ranks find each
other (a folder for one host, a port of the first host for several), and memory that N processes share."""

from __future__ import annotations

import ctypes
import datetime
import socket
from typing import Any

from tpu_magics.backends.base import CollectiveBroken, WorkerSpec

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_LARGE = 1 << 20  # bytes
FILE = "ranks"
_ANSWERS = 60.0  # seconds: the hosts start at different times


def problem() -> str:
    """Why ranks cannot be rehearsed with this PyTorch; "" if they can."""
    import torch.distributed as dist

    if not dist.is_available():
        return "This build of PyTorch has no torch.distributed, which a rehearsal needs for collectives."
    if not dist.is_gloo_available():
        return "This build of PyTorch has no gloo, which a rehearsal needs for collectives."
    return ""


def return_freed_memory() -> None:
    """Large blocks of memory return to the system when they are freed. By default, glibc keeps them once they recur:
    with a block for each graph and copy, a rank then holds about twice what it needs (measured with a model of 200 MB),
    and N ranks share one machine."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def meeting_store(spec: WorkerSpec, rank: int) -> Any:
    """torch.distributed's store for this rank. Raises CollectiveBroken if the first host does not answer."""
    import torch.distributed as dist

    assert spec.meeting is not None
    if spec.store is None:
        spec.meeting.mkdir(parents=True, exist_ok=True, mode=0o700)
        return dist.FileStore(str(spec.meeting / FILE), spec.ranks)
    host, port = spec.store
    options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=max(spec.collective_timeout, _ANSWERS))}
    try:
        if rank == 0:
            options |= {"is_master": True, "master_listen_fd": _listening(host, port)}
        return dist.TCPStore(host, port, spec.ranks, wait_for_workers=False, **options)
    except RuntimeError as error:  # DistNetworkError and DistStoreError are ones (torch 2.9)
        text = str(error).strip().splitlines()[0]
        raise CollectiveBroken(f"rank 0's store at {host}:{port} cannot be reached: {text}") from None


def _listening(host: str, port: int) -> int | None:
    """A socket on this address only, for torch's store, which takes it over: by default it listens on all addresses of
    this machine. None if the address is not its own (behind a NAT)."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family).detach()
    except OSError:
        return None
