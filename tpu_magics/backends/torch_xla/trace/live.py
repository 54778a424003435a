"""What is pending in this process: tensors of the device whose values nobody has computed yet.

What lives here: finding them, their graph, who takes over whose memory, and zeros in their places. What does not: when
(tracer.py).

Functions of torch_xla's C++ module, read in 2.9.0. Which memory is taken over is decided there when a step ends
(`GetBufferDonors` in xla_graph_executor.cpp): a parameter of the graph whose tensor's id is the alias id of one of the
tensors that are computed.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

_ALIAS = re.compile(r"^AliasID: (\d+)$", re.MULTILINE)


def tensors() -> list[Any]:
    """The tensors of this process that lie on the device, each once, in the order in which they were made.

    They are found among all that lives; what was there before the fork is not looked through (launch/process.py freezes
    it), and holds none.
    """
    found = _all()
    return ordered([*found, *_gradients(found)])


def _all() -> list[Any]:
    import torch

    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.is_xla]


def _gradients(found: Iterable[Any]) -> Iterator[Any]:
    """Python need not know a gradient that C++ holds."""
    return (one.grad for one in found if one.is_leaf and one.requires_grad and one.grad is not None)


def ordered(found: Iterable[Any]) -> list[Any]:
    """The same tensors, each once, by their ids: so does torch_xla order the results of a step."""
    by_id: dict[int, Any] = {}
    for one in found:
        number = _id(one)
        if number is not None:
            by_id[number] = one
    return [by_id[number] for number in sorted(by_id)]


def _id(tensor: Any) -> int | None:
    import torch_xla

    try:
        return int(torch_xla._XLAC._xla_get_tensor_id(tensor))
    except RuntimeError:  # "Expected XLA tensor. Got: XLAFloatType": one that a loader put there, of no graph
        return None


def pending(found: Iterable[Any]) -> list[Any]:
    """Those whose values have to be computed."""
    import torch_xla

    ask = torch_xla._XLAC._check_tensor_need_materialization
    return [one for one in found if ask([one])[0]]


def graph_hash(found: Sequence[Any]) -> str:
    """torch_xla's own hash of the graph of these tensors."""
    import torch_xla

    return bytes(torch_xla._XLAC._get_graph_hash(list(found))).hex()


def zero(found: Sequence[Any]) -> None:
    """Zeros in place of what is pending."""
    before = {_id(one) for one in found}
    _fill(found)
    # Another Python object of the same tensor may still stand for its old value.
    _fill([one for one in _all() if _id(one) in before])


def _fill(found: Iterable[Any]) -> None:
    import torch

    with torch.no_grad():
        for one in found:
            with torch.autograd._unsafe_preserve_version_counter(one):  # torch 2.9: nothing that autograd kept is stale
                one.zero_()


@dataclass(frozen=True)
class Pending:
    """A pending graph. `module`: serialized HloModuleProto; `text`: the same to read; `ids`: of the tensors that are
    its parameters, in their order (-1: a number of Python's); `donors`: numbers of parameters whose memory may be taken
    over."""

    module: bytes
    text: str
    ids: tuple[int, ...]
    donors: tuple[int, ...]

    @classmethod
    def of(cls, found: Sequence[Any]) -> Pending:
        import torch_xla

        extension = torch_xla._XLAC
        module = bytes(extension._get_xla_tensors_hlo_proto(list(found)))
        text = str(extension._get_xla_tensors_hlo(list(found)))
        ids, _ = extension._get_tensors_xla_device_data_node(list(found))
        aliases = {alias for one in found for alias in _aliases(one)}
        donors = tuple(place for place, number in enumerate(ids) if number in aliases)
        return cls(module, text, tuple(ids), donors)

    def names(self, parameters: Sequence[Any], frame: FrameType) -> tuple[str, ...]:
        """What is known of each parameter: its type, and the name of a model's parameter or an optimizer's state.
        `frame`: of the person's code, which knows models that are older than this process."""
        known = _names(frame)
        return tuple(
            f"{type_} {known[number]}" if number in known else str(type_)
            for type_, number in zip(parameters, [*self.ids, *[-1] * len(parameters)], strict=False)
        )


def _known_to(frame: FrameType | None) -> Iterator[Any]:
    """What the functions that are running have names for."""
    while frame is not None:
        yield from list(frame.f_locals.values())
        yield from list(frame.f_globals.values())
        frame = frame.f_back


def _aliases(tensor: Any) -> list[int]:
    import torch_xla

    return [int(number) for number in _ALIAS.findall(torch_xla._XLAC._get_xla_tensor_debug_info(tensor))]


def _names(frame: FrameType) -> dict[int, str]:
    """Names by tensor id: of the parameters and buffers of models, and of what optimizers keep for them."""
    import torch

    objects = [*gc.get_objects(), *_known_to(frame)]
    models = [one for one in objects if issubclass(type(one), torch.nn.Module)]
    inner = {id(child) for model in models for child in model._modules.values() if child is not None}
    names: dict[int, str] = {}
    owners: dict[int, str] = {}
    for model in (one for one in models if id(one) not in inner):
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_xla:
                names[_id(tensor) or 0] = name
                owners[id(tensor)] = name
    for optimizer in (one for one in objects if issubclass(type(one), torch.optim.Optimizer)):
        for parameter, state in optimizer.state.items():
            for kind, tensor in state.items() if isinstance(state, dict) else ():
                if issubclass(type(tensor), torch.Tensor) and tensor.is_xla:
                    names[_id(tensor) or 0] = f"{kind} of {owners.get(id(parameter), 'a parameter')}"
    return names
