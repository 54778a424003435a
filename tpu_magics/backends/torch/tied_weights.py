"""Tied weights (one tensor under several names): keeping them tied when a model moves, and detecting when they are not.

`model.to("xla")` creates a new Parameter for every place that holds one (an XLA tensor cannot replace a CPU tensor
inside the old Parameter, as a CUDA tensor can). So tied weights become separate weights, and an optimizer that was
created before the move still holds the old ones and trains nothing.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from tpu_magics.backends.torch import optimizers, tensor_transfer
from tpu_magics.backends.torch.modules import Slot, slots

Name: TypeAlias = tuple[str, str]  # (model, name in it)
Ties: TypeAlias = tuple[tuple[Name, ...], ...]


# -- which are tied, and are they still --------------------------------------------------------------------------------
def record_ties(models: Mapping[str, Any]) -> Ties:
    """Groups of names, within and across `models`, that are one and the same tensor object."""
    names: dict[int, list[Name]] = defaultdict(list)
    for model, module in models.items():
        for slot in slots(module):
            if slot.tensor is not None:
                names[id(slot.tensor)].append((model, slot.name))
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def unequal(groups: Sequence[Sequence[Name]], values: Mapping[Name, Any]) -> list[str]:
    """The groups whose `values` are not all bitwise equal, as text."""
    found = []
    models = {model for group in groups for model, _ in group}
    for group in groups:
        first, *others = (values[name] for name in group)
        if not all(same_bits(first, other) for other in others):
            found.append(" and ".join(f"`{name if len(models) == 1 else f'{model}.{name}'}`" for model, name in group))
    return found


def same_bits(left: Any, right: Any) -> bool:
    """Whether two CPU tensors have the same type, shape and bits (a NaN equals itself, 0.0 and -0.0 differ)."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape != right.shape or left.layout is not right.layout:
        return False
    if left.layout is not torch.strided:
        return bool(torch.equal(left.to_dense(), right.to_dense()))
    if left.is_quantized:
        return bool(torch.equal(left, right))
    return bool(torch.equal(_bits(left), _bits(right)))


def _bits(tensor: Any) -> Any:
    """The tensor's memory as integers; as wide as its numbers are, since wide comparisons are quicker."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return flat.view(integers.get(tensor.element_size(), torch.int64))


# -- keeping them tied, in a worker ------------------------------------------------------------------------------------
_moving = threading.local()
# Old parameter -> a weak reference to its replacement, as long as something still holds the old one.
_successors: Any = WeakTensorKeyDictionary()


def keep_ties() -> None:
    """From now on, tensors that were tied before a module moves are tied afterwards (idempotent).

    Covers `.to()`, `.cpu()`, `.to_empty()` and everything else that uses `Module._apply` (as `accelerator.prepare`
    does), and a parameter that two models share and that moves in two calls. Only for workers: it changes
    torch.nn.Module.
    """
    original = torch.nn.Module._apply  # torch 2.9.0; overridden by RNNs, which call it through super()
    if getattr(original, "keeps_ties", False):
        return

    @functools.wraps(original)
    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if getattr(_moving, "inside", False):
            return original(self, fn, recurse)
        if torch.__future__.get_swap_module_params_on_conversion():
            tensor_transfer.forget_moved()
            return original(self, fn, recurse)
        moves = _Moves(self, recurse, fn)
        _moving.inside = True
        try:
            result = original(self, moves.move, recurse)
        finally:
            _moving.inside = False
            moves.finish()
        return result

    apply.keeps_ties = True  # type: ignore[attr-defined]
    torch.nn.Module._apply = apply


class _Moves:
    """One move of a module: each tensor stays the same object, with what hangs on it (an optimizer, hooks, attributes,
    a name in the user's dict). It gets its new contents when the next one is moved, so that not all are in memory
    twice."""

    def __init__(self, module: Any, recurse: bool, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._rnns = [one for one in module.modules() if isinstance(one, torch.nn.RNNBase)]
        self._places: dict[int, list[Slot]] = defaultdict(list)
        self._waiting: Any = None
        self._replaced: dict[Any, Any] = {}  # objects that could not stay the same
        for slot in slots(module):
            if slot.tensor is not None and (recurse or slot.module is module):
                self._places[id(slot.tensor)].append(slot)

    def move(self, tensor: Any) -> Any:
        """Called by torch with each parameter, gradient and buffer."""
        if id(tensor) not in self._places:  # a gradient, which belongs to the parameter before it, or moved already
            return self._function(tensor)
        self._settle()
        result = self._function(tensor)
        self._waiting = tensor, self._places.pop(id(tensor))
        return result

    def _settle(self) -> None:
        if self._waiting is not None:
            (old, places), self._waiting = self._waiting, None
            for place in places:  # RNNs have weak references to their weights (torch 2.9.0)
                if isinstance(place.module, torch.nn.RNNBase):
                    place.module._flat_weight_refs = []
            _tie(places, old, _successors.get(old, lambda: None)(), self._replaced)

    def finish(self) -> None:
        """After the last one, also where the move failed."""
        self._settle()
        for rnn in self._rnns:
            rnn._init_flat_weights()
        optimizers.after_move(self._replaced)


def _tie(places: list[Slot], old: Any, earlier: Any, moved: dict[Any, Any]) -> None:
    """Put one tensor in all `places` that held `old` before: the same object with the moved contents, or `earlier` if
    it has the same form. `moved`: the objects that could not stay the same."""
    new = places[0].tensor
    if earlier is not None and (earlier.device, earlier.dtype, earlier.shape) == (new.device, new.dtype, new.shape):
        new = earlier
    elif old is not None and old is not new:
        if tensor_transfer.take_contents(old, new):
            new = old
        else:
            tensor_transfer.inherit(new, old)
            moved[old] = new
            _successors[old] = TensorWeakRef(new)
    for slot in places:
        if slot.tensor is not new:
            setattr(slot.module, slot.key, new)  # not through the table: RNNs keep a second list of their weights
