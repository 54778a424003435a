"""Compares the names, shapes and kinds of a model's parameters and buffers with the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tpu_magics.backends.torch_xla.named_parameters import Slot, slots
from tpu_magics.backends.torch_xla.weights_fetch import has_own_memory
from tpu_magics.backends.torch_xla.weights_files import ManifestEntry

_STATES = {"none": "None", "lazy": "not initialised", "meta": "without values (meta device)"}


def match(module: Any, there: Mapping[str, ManifestEntry]) -> tuple[list[tuple[Slot, ManifestEntry]], dict[str, bool]]:
    """Slots with their entries, and {difference: whether it matters} of those that do not match.

    A buffer that neither side saves with the model does not matter: it is a cache derived from the model, such as a
    table of angles.
    """
    here = {slot.name: slot for slot in slots(module)}
    matched: list[tuple[Slot, ManifestEntry]] = []
    different: dict[str, bool] = {}
    for name in dict.fromkeys((*here, *there)):
        slot, entry = here.get(name), there.get(name)
        difference = _difference(name, slot, entry)
        if difference is not None:
            different[difference] = any(side is not None and _is_saved(side) for side in (slot, entry))
        elif slot is not None and entry is not None:
            matched.append((slot, entry))
    return matched, different


def _is_saved(side: Slot | ManifestEntry) -> bool:
    return side.kind == "parameter" or side.persistent


def _difference(name: str, slot: Slot | None, entry: ManifestEntry | None) -> str | None:
    """Why `entry` cannot go to `slot`, as a part of a sentence; None if it matches."""
    if slot is None:
        return f"`{name}` exists only in the worker"
    if entry is None:
        return f"`{name}` exists only in the notebook"
    home = state_of(slot.tensor)
    if slot.kind != entry.kind:
        return f"`{name}` is a {slot.kind} in the notebook and a {entry.kind} in the worker"
    if home == entry.state != "data" or (slot.kind == "buffer" and "none" in (home, entry.state)):
        return None
    left, right = _form(slot.tensor), _entry_form(entry)
    unknown = entry.state == "data" and (home == "meta" or home == "lazy")
    if left == right or (unknown and (home == "lazy" or list(slot.tensor.shape) == list(entry.shape))):
        return None
    return f"`{name}` is {left} in the notebook and {right} in the worker"


def state_of(tensor: Any) -> str:
    """What a place holds: "none", "lazy", "meta" or "data" (see `ManifestEntry`)."""
    if tensor is None:
        return "none"
    if torch.nn.parameter.is_lazy(tensor):
        return "lazy"
    return "meta" if tensor.is_meta else "data"


def layout_of(tensor: Any) -> str:
    """torch's name of a tensor's layout; "quantized"; or the name of a class that wraps other tensors."""
    if not has_own_memory(tensor):
        return str(type(tensor).__qualname__)
    return "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")


def _form(tensor: Any) -> str:
    state = state_of(tensor)
    return _STATES[state] if state != "data" else _shape_text(tensor.shape, layout_of(tensor))


def _entry_form(entry: ManifestEntry) -> str:
    return _STATES[entry.state] if entry.state != "data" else _shape_text(entry.shape, entry.layout)


def _shape_text(shape: Sequence[int], layout: str) -> str:
    return f"{list(shape)}" if layout == "strided" else f"{list(shape)} ({layout})"
