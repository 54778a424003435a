"""torch_xla's collectives, run on the host: one function for each in its C++ module, with the same arguments and
results.

Signatures as in torch_xla 2.9.0 (init_python_bindings.cpp, and core/xla_model.py, which calls them). The `token` orders
collectives within a graph; here they run in call order, and it is returned unchanged.
"""

from __future__ import annotations

import functools
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch.rehearsal.group import Group, check_kind, gloo_dtype, gloo_kind, scaled
from tpu_magics.backends.torch_xla.rehearse import graph

if TYPE_CHECKING:
    from torch import Tensor

Groups = Sequence[Sequence[int]]
BUCKET = 16 << 20  # bytes
_library: list[Any] = []  # torch.library forgets what it registered when the library is collected


def install(group: Group) -> None:
    """Replace torch_xla's collectives, until the process ends."""
    import torch
    import torch_xla
    from torch_xla.core import xla_model
    from torch_xla.distributed import xla_backend

    ours = Collectives(group)
    for name in _NAMES:
        setattr(torch_xla._XLAC, f"_xla_{name}", ours.alone(getattr(ours, name)))
    xla_model._all_gather_using_all_reduce = ours.alone(ours.gather_padded)
    graph.split_compiled()
    library = torch.library.Library("_c10d_functional", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Overriding a previously registered kernel": that is intended
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
            library.impl(name, ours.alone(getattr(ours, f"functional_{name}")), "XLA", allow_override=True)
    _library.append(library)
    # torch_xla's own does nothing, but a user who calls it wants to wait.
    xla_backend.ProcessGroupXla.barrier = lambda group, opts: ours.barrier(group)  # noqa: ARG005 (its name is given)


class Collectives:
    """The collectives of one rank."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def alone(self, carry: Callable[..., Any]) -> Callable[..., Any]:
        """A collective, in one thread at a time: each runs what is pending on the device."""

        @functools.wraps(carry)
        def carried(*args: Any, **kwargs: Any) -> Any:
            with self.group.one:
                return carry(*args, **kwargs)

        return carried

    # -- reductions -----------------------------------------------------------------------------------------------
    def all_reduce(self, kind: str, tensor: Tensor, scale: float, groups: Groups, _pin: bool) -> Tensor:
        """A new tensor of the same shape: the reduction over the members of this rank's group."""
        [(_, reduced)] = self._reduced("all_reduce", kind, [tensor], scale, groups)
        return _put_one(reduced[0], tensor)

    def all_reduce_inplace(
        self, kind: str, tensors: Sequence[Tensor], scale: float, groups: Groups, _pin: bool
    ) -> None:
        """Reduce many tensors in place."""
        tensors = list(
            {id(tensor): tensor for tensor in tensors}.values()
        )  # a tensor that occurs twice is reduced once
        for places, reduced in self._reduced("all_reduce", kind, tensors, scale, groups):
            graph.put_into(reduced, [tensors[place] for place in places])

    def reduce_scatter(
        self,
        kind: str,
        tensor: Tensor,
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
        _channel: int | None = None,
        _global_ids: bool | None = None,
    ) -> tuple[Tensor, Any]:
        """This rank's part of the reduction: one of `shards` along dimension `dim`."""
        [part] = self._scattered(kind, [tensor], scale, dim, shards, groups)
        return _put_one(part, tensor), token

    def reduce_scatter_out(
        self,
        kind: str,
        output: Tensor,
        tensor: Tensor,
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
    ) -> Any:
        """Reduce and scatter into `output`."""
        graph.put_into(self._scattered(kind, [tensor], scale, dim, shards, groups), [output])
        return token

    def reduce_scatter_coalesced(
        self,
        kind: str,
        tensors: Sequence[Tensor],
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
    ) -> list[Any]:
        """Many tensors at once; the token comes last in the result."""
        return [*graph.put(self._scattered(kind, tensors, scale, dim, shards, groups), tensors), token]

    def reduce_scatter_coalesced_out(
        self,
        kind: str,
        outputs: Sequence[Tensor],
        tensors: Sequence[Tensor],
        token: Any,
        scale: float,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
    ) -> Any:
        """Many tensors at once, into `outputs`."""
        graph.put_into(self._scattered(kind, tensors, scale, dim, shards, groups), outputs)
        return token

    # -- what is only moved -----------------------------------------------------------------------------------------
    def all_gather(
        self,
        tensor: Tensor,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
        _channel: int | None = None,
        _global_ids: bool | None = None,
    ) -> Tensor:
        """The members' tensors, one after the other along dimension `dim`."""
        return graph.put(self._gathered([tensor], dim, shards, groups), [tensor])[0]

    def gather_padded(
        self, value: Tensor, dim: int = 0, groups: Groups | None = None, pin_layout: bool = True
    ) -> Tensor:
        """Replaces torch_xla's all_gather with a pinned layout: there, each rank pads its tensor with zeros, and all
        are summed. Here they are gathered without padding: ranks that pad differently would have different graphs, as
        if they ran different programs."""
        members = self._members(groups or [])
        place = dim + value.dim() if dim < 0 else dim
        gathered = self.all_gather(value, place, len(members), groups or [], pin_layout)
        return gathered.requires_grad_(value.requires_grad)  # as that sum does

    def all_gather_out(
        self, output: Tensor, tensor: Tensor, token: Any, dim: int, shards: int, groups: Groups, _pin: bool
    ) -> Any:
        """`all_gather` into `output`."""
        graph.put_into(self._gathered([tensor], dim, shards, groups), [output])
        return token

    def all_gather_coalesced(
        self, tensors: Sequence[Tensor], token: Any, dim: int, shards: int, groups: Groups, _pin: bool
    ) -> list[Any]:
        """Many tensors at once; the token comes last in the result."""
        return [*graph.put(self._gathered(tensors, dim, shards, groups), tensors), token]

    def all_gather_coalesced_out(
        self,
        outputs: Sequence[Tensor],
        tensors: Sequence[Tensor],
        token: Any,
        dim: int,
        shards: int,
        groups: Groups,
        _pin: bool,
    ) -> Any:
        """Many tensors at once, into `outputs`."""
        graph.put_into(self._gathered(tensors, dim, shards, groups), outputs)
        return token

    def all_to_all(
        self, tensor: Tensor, token: Any, split: int, concat: int, count: int, groups: Groups, _pin: bool
    ) -> tuple[Tensor, Any]:
        """Part i along dimension `split` goes to member i; the received parts are concatenated along dimension
        `concat`."""
        import torch

        members = self._members(groups)
        _require_members("all_to_all", "split_count", count, members)
        _require_even("all_to_all", tensor, split, count)
        _require_dimension("all_to_all", tensor, concat)
        graph.cut()
        with self._carrying(members, _doing("all_to_all", [tensor], split, concat, groups)) as doing:
            [host] = graph.copies([tensor])
            parts = [part.contiguous() for part in host.chunk(count, split)]
            received = self.group.exchange(members, parts, doing) if count > 1 else parts
        return _put_one(torch.cat(received, concat), tensor), token

    def collective_permute(self, tensor: Tensor, token: Any, pairs: Groups) -> tuple[Tensor, Any]:
        """The tensor of the rank that has this one as its target; zeros if there is none."""
        import torch

        members = tuple(sorted({int(rank) for pair in pairs for rank in pair}))
        graph.cut()
        [host] = graph.copies([tensor])
        result = torch.zeros_like(host)
        if self.group.rank in members:
            with self._carrying(members, _doing("collective_permute", [host], pairs)) as doing:
                parts = self.group.gather(members, host, doing)
            source = {int(target): int(source) for source, target in pairs}.get(self.group.rank)
            result = parts[members.index(source)] if source is not None else result
        return _put_one(result, tensor), token

    def send(self, *_args: Any) -> Any:
        """Not supported: an XLA channel connects two programs, and here each rank compiles its own."""
        raise RuntimeError(
            "xm.send and xm.recv cannot be rehearsed on XLA:CPU: their channels connect the programs of two TPU cores. "
            "Use xm.collective_permute with the pairs of ranks: it does the same, here and on a TPU."
        )

    recv = send

    # -- torch.distributed's -----------------------------------------------------------------------------------------
    def barrier(self, group: Any) -> Any:
        """Wait for all ranks of a process group."""
        from torch.distributed import distributed_c10d
        from torch_xla.distributed import xla_backend

        with self._carrying(tuple(distributed_c10d.get_process_group_ranks(group)), "barrier"):
            return xla_backend._ret_work([])

    def functional_all_reduce(self, tensor: Tensor, kind: str, group_name: str) -> Tensor:
        return self.all_reduce(kind, tensor, 1.0, self._named(group_name), False)

    def functional_all_gather_into_tensor(self, tensor: Tensor, size: int, group_name: str) -> Tensor:
        return self.all_gather(tensor, 0, size, self._named(group_name), False)

    def functional_reduce_scatter_tensor(self, tensor: Tensor, kind: str, size: int, group_name: str) -> Tensor:
        return self.reduce_scatter(kind, tensor, None, 1.0, 0, size, self._named(group_name), False)[0]

    def functional_all_to_all_single(
        self, tensor: Tensor, _out: Sequence[int], _in: Sequence[int], group_name: str
    ) -> Tensor:
        groups = self._named(group_name)
        return self.all_to_all(tensor, None, 0, 0, len(self._members(groups)), groups, False)[0]

    # -- what they are made of ---------------------------------------------------------------------------------------
    def _reduced(
        self, name: str, kind: str, tensors: Sequence[Tensor], scale: float, groups: Groups
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """The results in host memory with their indices, bucket by bucket: all gradients of a model at once would need
        several times its memory."""
        members = self._members(groups)
        for tensor in tensors:
            check_kind(kind, tensor.dtype)
        graph.cut()
        with self._carrying(members, _doing(f"{name} {kind}", tensors, scale, groups)) as doing:
            for places in _buckets(tensors):
                host = [one.detach() for one in graph.copies([tensors[place] for place in places])]
                if len(members) > 1:
                    host = self._reduce(members, host, kind, doing)
                yield places, [scaled(one, scale) for one in host]

    def _reduce(self, members: tuple[int, ...], host: Sequence[Tensor], kind: str, doing: str) -> list[Tensor]:
        """Tensors of one type, reduced as one."""
        import torch

        dtype = host[0].dtype
        parts = [one.reshape(-1).to(gloo_dtype(dtype)) for one in host]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        if flat.numel():
            real = torch.view_as_real(flat) if dtype.is_complex else flat
            self.group.reduce(members, real, gloo_kind(kind, dtype), doing)
        sizes = [one.numel() for one in host]
        return [part.to(dtype).reshape(one.shape) for part, one in zip(flat.split(sizes), host, strict=True)]

    def _scattered(
        self, kind: str, tensors: Sequence[Tensor], scale: float, dim: int, shards: int, groups: Groups
    ) -> list[Tensor]:
        members = self._members(groups)
        _require_members("reduce_scatter", "shard_count", shards, members)
        for tensor in tensors:
            _require_even("reduce_scatter", tensor, dim, shards)
        mine = members.index(self.group.rank)
        return [
            one.chunk(shards, dim)[mine].contiguous().clone()
            for _, reduced in self._reduced("reduce_scatter", kind, tensors, scale, groups)
            for one in reduced
        ]

    def _gathered(self, tensors: Sequence[Tensor], dim: int, shards: int, groups: Groups) -> list[Tensor]:
        import torch

        members = self._members(groups)
        _require_members("all_gather", "shard_count", shards, members)
        for tensor in tensors:
            _require_dimension("all_gather", tensor, dim)
        graph.cut()
        with self._carrying(members, _doing("all_gather", tensors, dim, groups)) as doing:
            return [torch.cat(self.group.gather(members, graph.copies([one])[0], doing), dim) for one in tensors]

    def _members(self, groups: Groups) -> tuple[int, ...]:
        """The ranks of this rank's group, in the group's order."""
        if not groups:
            return self.group.everyone
        for group in groups:
            members = tuple(int(rank) for rank in group)
            if self.group.rank in members:
                return members
        raise RuntimeError(
            f"Rank {self.group.rank} called a collective, but is in none of its groups "
            f"{[list(group) for group in groups]}. XLA needs every rank in exactly one group."
        )

    def _named(self, name: str) -> Groups:
        """The groups for a torch.distributed process group, which must be the world: torch_xla's functional collectives
        ignore it (cross_replica_reduces.cpp)."""
        if not name:
            return []
        from torch.distributed import distributed_c10d

        ranks = distributed_c10d.get_process_group_ranks(distributed_c10d._resolve_process_group(name))
        if sorted(ranks) != list(self.group.everyone):
            raise RuntimeError(
                f"On a TPU, a functional collective over the ranks {ranks} would run over all ranks: torch_xla 2.9 "
                "ignores its process group. Use the xm function with groups=[...]."
            )
        return []

    def _carrying(self, members: tuple[int, ...], doing: str) -> _HostCollective:
        some = "" if members == self.group.everyone else f" among the ranks {', '.join(map(str, members))}"
        return _HostCollective(self.group, members, f"{doing}{some}")


class _HostCollective:
    """A collective on the host: its ranks agree on it first, and its time is measured."""

    def __init__(self, group: Group, members: tuple[int, ...], doing: str) -> None:
        self.group = group
        self.members = members
        self.doing = doing

    def __enter__(self) -> str:
        self.started = time.perf_counter()
        if len(self.members) > 1:
            self.group.agree(self.members, self.doing)
        return self.doing

    def __exit__(self, *_error: object) -> None:
        self.group.count += 1
        self.group.seconds += time.perf_counter() - self.started


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Indices of tensors that are reduced together: neighbours of one type, up to BUCKET bytes; a larger one alone."""
    places: list[int] = []
    size = 0
    for place, tensor in enumerate(tensors):
        own = tensor.numel() * tensor.element_size()
        if places and (size + own > BUCKET or tensor.dtype != tensors[places[0]].dtype):
            yield places
            places, size = [], 0
        places, size = [*places, place], size + own
    if places:
        yield places


def _put_one(result: Tensor, like: Tensor) -> Tensor:
    """Needs a gradient if `like` does, as torch_xla's own result; no gradient flows through it."""
    return graph.put([result.detach()], [like])[0].requires_grad_(like.requires_grad)


def _doing(name: str, tensors: Sequence[Tensor], *more: object) -> str:
    """A text for what a rank is about to do, different for different collectives: the first tensor in words, the others
    and the arguments as a checksum."""
    said = [f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}".replace(" ", "") for one in tensors]
    first = f" of {said[0]}" if said else " of nothing"
    others = f" and {len(said) - 1} more" if len(said) > 1 else ""
    checksum = zlib.crc32(repr((said, more)).encode())
    return f"{name}{first}{others} [{checksum:08x}]"


def _require_members(name: str, argument: str, count: int, members: Sequence[int]) -> None:
    if count != len(members):
        raise RuntimeError(f"{name} got {argument}={count}, but its group has {len(members)} ranks.")


def _require_dimension(name: str, tensor: Tensor, dim: int) -> None:
    if not 0 <= dim < tensor.dim():
        raise RuntimeError(
            f"{name}: a tensor of shape {list(tensor.shape)} has no dimension {dim}. XLA counts dimensions from 0."
        )


def _require_even(name: str, tensor: Tensor, dim: int, count: int) -> None:
    _require_dimension(name, tensor, dim)
    size = tensor.shape[dim]
    if size % count:
        raise RuntimeError(
            f"{name} splits dimension {dim} of {list(tensor.shape)} over {count} ranks, but {size} is not a multiple "
            f"of {count}. Pad this dimension to {-(-size // count) * count}."
        )


_NAMES = (
    *("all_reduce", "all_reduce_inplace", "all_gather", "all_gather_out", "all_gather_coalesced"),
    *("all_gather_coalesced_out", "all_to_all", "collective_permute", "send", "recv", "reduce_scatter"),
    *("reduce_scatter_out", "reduce_scatter_coalesced", "reduce_scatter_coalesced_out"),
)
