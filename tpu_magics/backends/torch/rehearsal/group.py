"""The ranks of a rehearsal, connected by torch.distributed's gloo, and reductions over them as XLA defines them.

Before a collective, its ranks compare what they are about to do: different collectives would hang on a TPU, and give
wrong values here.
"""

from __future__ import annotations

import datetime
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import CollectiveBroken, CollectiveTimeout

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_START = 60.0  # seconds
LOOPBACK = "127.0.0.1"
MESSAGE_BYTES = 240  # that a rank sends about its next collective
_SHOWN = 3  # different collectives that an error lists


_made: list[Group] = []


def failure() -> BaseException | None:
    """What ended a collective of this rank, in any thread; None if none failed. Waits for one that a thread is in."""
    for group in _made:
        with group.one:
            if group.failed is not None:
                return group.failed
    return None


class Group:
    """All ranks, as one of them sees them. `store`: where they find each other; `timeout`: seconds to wait in a
    collective; `address`: where the others reach this one."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, address: str = LOOPBACK) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.seconds = 0.0
        self.count = 0
        self.address = address
        self.one = threading.RLock()  # a thread at a time
        self.failed: BaseException | None = None  # of any thread
        self._store = store
        self._groups: dict[tuple[int, ...], Any] = {}
        _made.append(self)

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.size))

    def meet(self) -> None:
        """Connect all ranks. They start at different times, so this waits long enough, whatever the timeout."""
        import torch

        group = self._connect(self.everyone, max(self.timeout, _START))
        group._set_default_timeout(datetime.timedelta(seconds=self.timeout))
        self._groups[self.everyone] = group
        self.agree(self.everyone, "the start")
        if self.timeout < _START and torch.__version__ < "2.9":  # there gloo keeps its first timeout
            self._groups[self.everyone] = self._connect(self.everyone, self.timeout, "again-")

    # -- what is carried ------------------------------------------------------------------------------------------
    def agree(self, members: Sequence[int], doing: str) -> None:
        """Wait for the members, and check that all are in the same collective.

        Raises CollectiveTimeout if one does not come, CollectiveBroken if one does something else or has left.
        """
        import torch

        message = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8, device="cpu")  # a default device may be set
        text = doing.encode("utf-8", "replace")[:MESSAGE_BYTES]
        message[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else message[:0]
        texts = [bytes(one.tolist()).rstrip(b"\0") for one in self._gather(members, message, doing)]
        if any(one != text for one in texts):
            self.failed = CollectiveBroken(_differ(members, [one.decode("utf-8", "replace") for one in texts]))
            raise self.failed

    def reduce(self, members: Sequence[int], flat: Tensor, kind: str, doing: str) -> None:
        """Reduce in place: `kind` is "sum", "mul", "min", "max", "and" or "or"; the type must be one that gloo
        supports."""
        import torch
        import torch.distributed as dist

        if kind in ("min", "max") and flat.is_floating_point():  # gloo compares, so that a rank's NaN may be lost
            missing = flat.isnan().to(torch.uint8)
            self.reduce(members, missing, "max", doing)
        else:
            missing = None

        kinds = {"sum": "SUM", "mul": "PRODUCT", "min": "MIN", "max": "MAX", "and": "BAND", "or": "BOR"}
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, kinds[kind])
        self._wait(members, lambda group: group.allreduce([flat], options), doing)
        if missing is not None:
            flat.masked_fill_(missing.bool(), torch.nan)

    def gather(self, members: Sequence[int], tensor: Tensor, doing: str) -> list[Tensor]:
        """The tensors of all members, in their order; all have the same shape and type."""
        import torch

        flat = _bytes(tensor)
        parts = self._gather(members, flat, doing)
        return [
            part.view(tensor.dtype).reshape(tensor.shape) if part.numel() else torch.empty_like(tensor)
            for part in parts
        ]

    def from_first(self, tensor: Tensor, doing: str) -> Tensor:
        """Rank 0's tensor; all ranks' have the same shape and type."""
        self.agree(self.everyone, doing)
        return self.gather(self.everyone, tensor, doing)[0]

    def exchange(self, members: Sequence[int], parts: Sequence[Tensor], doing: str) -> list[Tensor]:
        """Send each member its part, and receive one from each; all parts have the same shape and type."""
        import torch
        import torch.distributed as dist

        flat = torch.cat([_bytes(part) for part in parts])
        received = torch.empty_like(flat)
        self._wait(members, lambda group: group.alltoall_base(received, flat, [], [], dist.AllToAllOptions()), doing)
        chunks = received.chunk(len(members)) if flat.numel() else [received] * len(members)
        return [
            chunk.view(part.dtype).reshape(part.shape) if part.numel() else part.clone()
            for chunk, part in zip(chunks, parts, strict=True)
        ]

    def send(self, tensor: Tensor, rank: int, tag: int, doing: str) -> None:
        """Send to one rank, which receives with the same tag."""
        self._wait(self.everyone, lambda group: group.send([_bytes(tensor)], rank, tag), doing)

    def receive(self, tensor: Tensor, rank: int, tag: int, doing: str) -> None:
        """Receive into a contiguous tensor."""
        self._wait(self.everyone, lambda group: group.recv([_bytes(tensor)], rank, tag), doing)

    # -- how ------------------------------------------------------------------------------------------------------
    def _gather(self, members: Sequence[int], flat: Tensor, doing: str) -> list[Tensor]:
        import torch

        parts = [torch.empty_like(flat) for _ in members]
        if flat.numel():
            self._wait(members, lambda group: group.allgather([parts], [flat]), doing)
        return parts

    def _wait(self, members: Sequence[int], start: Any, doing: str) -> None:
        started = time.monotonic()
        try:
            start(self._connected(tuple(members))).wait()
        except RuntimeError as error:
            said = _said(error, doing, time.monotonic() - started, self.timeout)
            if said is None:
                raise
            self.failed = said
            raise said from None

    def _connected(self, members: tuple[int, ...]) -> Any:
        if members not in self._groups:
            self._groups[members] = self._connect(members, self.timeout)
        return self._groups[members]

    def _connect(self, members: tuple[int, ...], timeout: float, name: str = "") -> Any:
        """A gloo group, over the loopback interface if there is one host: its name may not resolve to an address.
        `name`: distinguishes it from another group of the same members."""
        import torch.distributed as dist

        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.address)]
        options._timeout = datetime.timedelta(seconds=timeout)
        self._store.set_timeout(options._timeout)
        store = dist.PrefixStore(f"{name}ranks-{'-'.join(map(str, members))}", self._store)
        with _quiet():
            return dist.ProcessGroupGloo(store, members.index(self.rank), len(members), options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress gloo's message ("[Gloo] Rank 0 is connected to 1 peer ranks"), which cannot be turned off and goes to
    one of the process's descriptors."""
    saved, nowhere = [os.dup(number) for number in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(nowhere)


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor as bytes, which works for any type."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


_BROKEN = re.compile(r"Connection|Socket|socket|peer|Broken pipe|pair\.cc|[Ss]tore")


def _said(error: RuntimeError, doing: str, waited: float, timeout: float) -> BaseException | None:
    """What a failed collective means; None for what gloo rejects. Gloo's messages as in torch 2.9.0."""
    text = str(error).strip()
    if waited >= timeout * 0.9 or "imed out" in text or "imeout" in text:
        return CollectiveTimeout(f"waited {timeout:g} s in {doing}, which not every rank entered")
    return CollectiveBroken(f"in {doing}: {text}") if _BROKEN.search(text) else None


def _differ(members: Sequence[int], texts: Sequence[str]) -> str:
    """Which ranks are in which collective, the most frequent first."""
    groups: dict[str, list[int]] = {}
    for rank, text in zip(members, texts, strict=True):
        groups.setdefault(text, []).append(rank)
    ordered = sorted(groups.items(), key=lambda one: -len(one[1]))
    said = "; ".join(f"{_names(ranks)}: {text}" for text, ranks in ordered[:_SHOWN])
    return f"the ranks are in different collectives: {said}"


def _names(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


# -- reductions -------------------------------------------------------------------------------------------------------


# XLA adds bools as "or" and multiplies them as "and". A scale is converted to the element type first, so 0.125 is 0 for
# integers, and 1/3 has float32 digits also for float64 (torch_xla 2.9.0, cross_replica_reduces.cpp: ScalarValue(scale,
# type)).

KINDS = ("sum", "mul", "min", "max", "and", "or")
_OF_TRUTH = {"sum": "max", "or": "max", "max": "max", "mul": "min", "and": "min", "min": "min"}


def check_kind(kind: str, dtype: torch.dtype) -> None:
    """Raise RuntimeError for what XLA does not support."""
    if kind not in KINDS:
        raise RuntimeError(
            f'{kind!r} is not an XLA reduction. XLA has {", ".join(KINDS)}. For an average, reduce with "sum" and '
            "divide by the number of ranks."
        )
    if kind in ("and", "or") and (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            f"XLA has no {kind!r} reduction for {str(dtype).removeprefix('torch.')}, only for bool and integers. "
            "Convert the tensor, or use xm.REDUCE_MIN or xm.REDUCE_MAX."
        )
    if dtype.is_complex and kind != "sum":
        raise RuntimeError(f"XLA has no {kind!r} reduction for complex numbers, only the sum.")


def gloo_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which gloo reduces it: half-precision sums are rounded once, at the end."""
    import torch

    wider = {
        torch.bfloat16: torch.float32,
        torch.float16: torch.float32,
        torch.bool: torch.uint8,
        torch.int16: torch.int32,
        torch.uint16: torch.int32,
        torch.uint32: torch.int64,
        torch.float8_e4m3fn: torch.float32,
        torch.float8_e5m2: torch.float32,
    }
    return wider.get(dtype, dtype)


def gloo_kind(kind: str, dtype: torch.dtype) -> str:
    """The operation in the travelling type."""
    import torch

    return _OF_TRUTH[kind] if dtype == torch.bool else kind


def scaled(tensor: Tensor, scale: float) -> Tensor:
    """The result times the scale, in the result's own type and memory."""
    import torch

    if scale == 1.0:
        return tensor
    factor = torch.tensor(scale, dtype=torch.float32, device="cpu").to(tensor.dtype)
    return tensor.logical_and_(factor) if tensor.dtype == torch.bool else tensor.mul_(factor)
