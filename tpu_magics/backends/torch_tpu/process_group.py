"""torch.distributed's backend "tpu" in a rehearsal: its collectives run on the host, through gloo.

torch_tpu 0.2.0 registers the backends "tpu" and "tpu_dist", which need chips. In a worker of a rehearsal both make a
process group of this module, and init_process_group() finds the other ranks without a port. DistributedDataParallel,
accelerate and transformers run their own code on it. XLA:CPU has no collectives across processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.futures import Future

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.rehearsal import meeting_store, return_freed_memory
from tpu_magics.backends.torch.rehearsal.group import LOOPBACK, Group, gloo_dtype, gloo_kind

BACKENDS = ("TPU", "TPU_DIST")
_PORT = 8476  # of the first rank's slice builder, as libtpu's own default
_KINDS = {"SUM": "sum", "AVG": "sum", "PRODUCT": "mul", "MIN": "min", "MAX": "max", "BAND": "and", "BOR": "or"}


def name_ranks(spec: WorkerSpec) -> None:
    """Tell this process its rank, as torchrun does. TorchTPU's runtime reads it when it starts, and then asks for
    chips: in a rehearsal this comes after the start."""
    number = {"RANK": spec.number, "WORLD_SIZE": spec.ranks, "LOCAL_RANK": spec.index, "LOCAL_WORLD_SIZE": spec.count}
    os.environ.update({name: str(value) for name, value in number.items()})
    _patch_accelerate()
    if spec.meeting is None and spec.tracing is None:
        _name_chips(spec)


def rehearse(spec: WorkerSpec) -> None:
    """Carry the collectives of this rank through gloo, until the process ends."""
    return_freed_memory()

    def make(prefix: Any, number: int, size: int, _timeout: Any) -> RehearsalGroup:
        return RehearsalGroup(Group(prefix, number, size, spec.collective_timeout, spec.address or LOOPBACK))

    _install(meeting_store(spec, spec.number), spec, make)


def pretend(spec: WorkerSpec) -> None:
    """This is the first of several ranks that do not exist: its collectives return what it passes, until the process
    ends."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def make(_prefix: Any, number: int, size: int, _timeout: Any) -> RehearsalGroup:
        return RehearsalGroup(_FakeGroup(None, number, size, spec.collective_timeout))

    _install(FakeStore(), spec, make)


def _install(store: Any, spec: WorkerSpec, make: Callable[..., RehearsalGroup]) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else accelerate warns that it sets it

    def find(_url: str, **_kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        yield store, spec.number, spec.ranks

    # by its name: torch.distributed has a function of the same one
    import_module("torch.distributed.rendezvous")._rendezvous_handlers["env"] = find
    for name in BACKENDS:
        dist.Backend._plugins[name] = dist.Backend._plugins[name]._replace(creator_fn=make)


def _name_chips(spec: WorkerSpec) -> None:
    """What torch.tpu.distributed.set_tpu_launch_env() sets for the ranks of one host. Not tried on a TPU yet."""
    topology = import_module("torch_tpu._internal.utils.hardware").get_tpu_topology(spec.count)
    if topology:
        os.environ.setdefault("TORCH_TPU_TOPOLOGY", topology)
    addresses = ",".join(f"localhost:{_PORT + number}" for number in range(spec.count))
    os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses)
    os.environ.setdefault("MASTER_ADDR", LOOPBACK)
    os.environ.setdefault("MASTER_PORT", str(_PORT - 1))


def _patch_accelerate() -> None:
    """accelerate 1.15.0 has no kind of distributed training for "tpu": each rank would believe to be alone. The kind
    for CPUs does what is needed: DistributedDataParallel without device numbers."""
    PostImport().when_imported("accelerate.state", _know_tpu)


def _know_tpu(module: Any) -> None:
    original: Callable[..., tuple[Any, Any]] = module.PartialState._prepare_backend

    def prepare_backend(state: Any, cpu: bool = False, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return original(state, cpu, *args, **kwargs) if cpu else ("tpu", module.DistributedType.MULTI_CPU)

    module.PartialState._prepare_backend = prepare_backend


class _FakeGroup(Group):
    """All ranks do and have the same as this one."""

    def meet(self) -> None:
        pass

    def agree(self, members: Sequence[int], doing: str) -> None:
        pass

    def reduce(self, members: Sequence[int], flat: Any, kind: str, doing: str) -> None:
        pass

    def gather(self, members: Sequence[int], tensor: Any, doing: str) -> list[Any]:  # noqa: ARG002
        return [tensor] * self.size

    def exchange(self, members: Sequence[int], parts: Sequence[Any], doing: str) -> list[Any]:  # noqa: ARG002
        return [parts[self.rank]] * self.size

    def send(self, tensor: Any, target: int, tag: int, doing: str) -> None:
        pass

    def receive(self, tensor: Any, source: int, tag: int, doing: str) -> None:
        pass


class RehearsalGroup(ProcessGroup):
    """The ranks of a process group; each method is documented by torch.distributed."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        group.meet()

    def getBackendName(self) -> str:
        return "tpu"

    # -- reductions -----------------------------------------------------------------------------------------------
    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        for tensor in tensors:
            tensor.copy_(self._reduced(tensor, opts, "all_reduce"))
        return _done(list(tensors))

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[Any], opts: Any) -> Any:
        for tensor in tensors:
            result = self._reduced(tensor, opts, "reduce")
            if self.group.rank == opts.rootRank:
                tensor.copy_(result)
        return _done(list(tensors))

    def reduce_scatter(self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            whole = self._reduced(torch.stack([part.cpu() for part in parts]), opts, "reduce_scatter")
            output.copy_(whole[self.group.rank])
        return _done(list(outputs))

    def reduce_scatter_single(self, output: Any, inputs: Any, opts: Any = None) -> Any:
        whole = self._reduced(inputs, opts, "reduce_scatter")
        output.copy_(whole.reshape(self.group.size, *output.shape)[self.group.rank])
        return _done([output])

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        for output, whole in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, whole, opts)
        return _done(list(outputs))

    def _reduced(self, tensor: Any, opts: Any, what: str) -> Any:
        """The reduction of all ranks' tensors, on the CPU."""
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        name = next((one for one in _KINDS if operation == getattr(dist.ReduceOp, one)), "")
        if not name:
            raise RuntimeError(f"This reduction is not supported in a rehearsal; there are {', '.join(_KINDS)}.")
        doing = f"{what} {name} of {_described(tensor)}"
        everyone = self.group.everyone
        self.group.agree(everyone, doing)
        host = tensor.cpu()
        flat = host.to(gloo_dtype(host.dtype)).reshape(-1).contiguous()
        if flat.data_ptr() == host.data_ptr():
            flat = flat.clone()
        if flat.numel():
            self.group.reduce(everyone, flat, gloo_kind(_KINDS[name], host.dtype), doing)
        if name == "AVG":
            flat = flat / self.group.size
        return flat.to(host.dtype).reshape(host.shape)

    # -- exchanges ------------------------------------------------------------------------------------------------
    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Any:
        for tensor in tensors:
            tensor.copy_(self._gathered(tensor, "broadcast")[opts.rootRank])
        return _done(list(tensors))

    def allgather(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Any:  # noqa: ARG002
        for parts, tensor in zip(outputs, inputs, strict=True):
            for part, value in zip(parts, self._gathered(tensor, "all_gather"), strict=True):
                part.copy_(value)
        return _done([list(parts) for parts in outputs])

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:  # noqa: ARG002
        output.copy_(torch.cat([one.reshape(-1) for one in self._gathered(tensor, "all_gather")]).reshape(output.shape))
        return _done([output])

    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor, opts)
        return _done(list(outputs))

    def gather(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any) -> Any:
        values = self._gathered(inputs[0], "gather")
        if self.group.rank == opts.rootRank:
            for part, value in zip(outputs[0], values, strict=True):
                part.copy_(value)
        return _done([list(parts) for parts in outputs])

    def scatter(self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any) -> Any:
        mine = inputs[0] if self.group.rank == opts.rootRank else [outputs[0]] * self.group.size
        parts = self._exchanged([part.cpu() for part in mine], "scatter")
        outputs[0].copy_(parts[opts.rootRank])
        return _done(list(outputs))

    def alltoall(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:  # noqa: ARG002
        for output, value in zip(outputs, self._exchanged([part.cpu() for part in inputs], "all_to_all"), strict=True):
            output.copy_(value)
        return _done(list(outputs))

    def all_to_all_single(self, output: Any, tensor: Any, out_sizes: Any, in_sizes: Any, opts: Any = None) -> Any:  # noqa: ARG002
        if out_sizes or in_sizes:
            raise RuntimeError("all_to_all_single with split sizes is not supported in a rehearsal; omit them.")
        parts = self._exchanged(list(tensor.cpu().chunk(self.group.size)), "all_to_all")
        output.copy_(torch.cat(parts).reshape(output.shape))
        return _done([output])

    def send(self, tensors: Sequence[Any], dst: int, tag: int) -> Any:
        for tensor in tensors:
            self.group.send(tensor.cpu(), dst, tag, f"send of {_described(tensor)} to rank {dst}")
        return _done(list(tensors))

    def recv(self, tensors: Sequence[Any], src: int, tag: int) -> Any:
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            self.group.receive(host, src, tag, f"recv of {_described(tensor)} from rank {src}")
            tensor.copy_(host)
        return _done(list(tensors))

    def barrier(self, opts: Any = None) -> Any:  # noqa: ARG002
        self.group.agree(self.group.everyone, "barrier")
        return _done([])

    # their names before torch 2.15
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _gathered(self, tensor: Any, what: str) -> list[Any]:
        doing = f"{what} of {_described(tensor)}"
        self.group.agree(self.group.everyone, doing)
        return self.group.gather(self.group.everyone, tensor.cpu(), doing)

    def _exchanged(self, parts: Sequence[Any], what: str) -> list[Any]:
        doing = f"{what} of {_described(parts[0])}"
        self.group.agree(self.group.everyone, doing)
        return self.group.exchange(self.group.everyone, parts, doing)


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"


def _done(result: Any) -> Any:
    """A collective that has ended."""
    future: Future[Any] = Future()
    future.set_result(result)
    return import_module("torch._C._distributed_c10d")._create_work_from_future(future)
