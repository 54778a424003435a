"""Names for the parameters of a graph: model parameters and buffers, optimizer state, inputs from the host.

A name is found by the id of the tensor whose place a tensor takes (`alias` in pending_graph.py): at the end of a step,
a model's parameter is the result of the step, and the graph's parameter is its value before.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.observe.sites import outwards
from tpu_magics.backends.torch_xla import optimizers
from tpu_magics.backends.torch_xla.observe import snapshot
from tpu_magics.backends.torch_xla.trace.live_tensors import inner, outer_tensors
from tpu_magics.backends.torch_xla.trace.pending_graph import alias

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver

_WRAPPED = "_orig_module."  # in which torch_xla's FSDP v2 keeps the wrapped module


class ParameterNames:
    """The models of a process: those that moved to the device (they may be older than the process), and those created
    in it."""

    def __init__(self) -> None:
        self._moved: weakref.WeakSet[Any] = weakref.WeakSet()
        self._moving = 0

    def moving(self) -> bool:
        """Whether a model is being moved now."""
        return self._moving > 0

    def install(self) -> None:
        """Record every model that moves, until the process ends."""
        import torch

        original = torch.nn.Module._apply

        @functools.wraps(original)
        def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._moving:
                self._moved.add(module)
            self._moving += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._moving -= 1

        torch.nn.Module._apply = apply

    def describe(
        self, parameters: Sequence[Any], ids: Sequence[int], frame: FrameType, observer: TorchObserver | None
    ) -> Any:
        """The type of each parameter, and its name if known. `ids`: of their tensors; `frame`: the line of the sync."""
        known = self._known(frame, observer)
        return tuple(
            f"{type_} {known[one]}" if one in known else str(type_)
            for type_, one in zip(parameters, [*ids, *[-1] * len(parameters)], strict=False)
        )

    def _known(self, frame: FrameType, observer: TorchObserver | None) -> Mapping[int, str]:
        inputs = dict(_inputs(frame, observer)) if observer is not None else {}
        return {**inputs, **self._of_models(frame)}

    def _of_models(self, frame: FrameType) -> dict[int, str]:
        import torch

        living = gc.get_objects()
        models = _outermost([*self._moved, *_instances(living, torch.nn.Module)])
        labels = _labels(models, frame) if len(models) > 1 else {}
        names: dict[int, str] = {}
        owners: dict[int, str] = {}
        for model in models:
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                name = name.replace(_WRAPPED, "")
                if tensor.is_xla:
                    owners[id(tensor)] = f"{labels[id(model)]}.{name}" if labels else name
                    names[alias(inner(tensor))] = owners[id(tensor)]
        for optimizer in optimizers.living():
            names.update(_kept_by(optimizer, owners))
        return names


def _instances(living: Iterable[Any], kind: type) -> list[Any]:
    """isinstance() would run code of other objects, e.g. of proxies."""
    return [one for one in living if issubclass(type(one), kind)]


def _outermost(models: Iterable[Any]) -> list[Any]:
    """The models that are not part of another one, and have parameters or buffers on the device."""
    each = {id(model): model for model in models if hasattr(model, "_modules")}
    inside = {id(part) for model in each.values() for part in model.modules() if part is not model}
    return [model for key, model in each.items() if key not in inside and _is_there(model)]


def _is_there(model: Any) -> bool:
    return any(one.is_xla for one in (*model.parameters(), *model.buffers()))


def _labels(models: Sequence[Any], frame: FrameType) -> dict[int, str]:
    """A name for each of several models: its variable, or its class."""
    variables = {id(value): name for name, value in reversed(list(_variables(frame)))}
    labels = {id(model): variables.get(id(model)) or type(model).__name__ for model in models}
    count = Counter(labels.values())
    return {
        key: label if count[label] == 1 else f"{label} {place}" for place, (key, label) in enumerate(labels.items())
    }


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The variables of the running functions, innermost first."""
    for one in outwards(frame):
        yield from snapshot.locals_of(one).items()
        yield from list(one.f_globals.items())


def _kept_by(optimizer: Any, owners: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for parameter, state in optimizer.state.items():
        for kind, tensor in state.items() if isinstance(state, dict) else ():
            if snapshot.is_tensor(tensor) and tensor.is_xla:
                yield alias(inner(tensor)), f"{kind} of {owners.get(id(parameter), 'a parameter')}"


def _inputs(frame: FrameType, observer: TorchObserver) -> Iterator[tuple[int, str]]:
    """Inputs from the host, by their name in the batch or the variable that holds them."""
    variables = {seen.key: name for name, seen in snapshot.take(frame, observer.sites).tensors.items()}
    names = {**variables, **{one.key: one.name for one in observer.events.arrivals if one.name}}
    for one in outer_tensors():
        if id(one) in names:
            yield alias(inner(one)), names[id(one)]
