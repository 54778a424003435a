"""Checks that trained weights match the notebook's models, and plans the updates. Changes nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tpu_magics.backends.torch import weights_files
from tpu_magics.backends.torch.modules import Slot, slots
from tpu_magics.backends.torch.tensor_transfer import has_own_memory
from tpu_magics.backends.torch.tied_weights import record_ties, same_bits, unequal
from tpu_magics.backends.torch.weights_files import ManifestEntry
from tpu_magics.errors import TpuMagicsError

_SHOWN = 5  # differences that an error names

# {dtype: the dtypes that hold each of its values exactly}
_FLOATS = (torch.float32, torch.float64)
_EXACT_IN: Mapping[Any, tuple[Any, ...]] = {
    torch.float8_e4m3fn: (torch.float16, torch.bfloat16, *_FLOATS),
    torch.float8_e5m2: (torch.float16, torch.bfloat16, *_FLOATS),
    torch.float16: _FLOATS,
    torch.bfloat16: _FLOATS,
    torch.float32: (torch.float64,),
    torch.complex64: (torch.complex128,),
    torch.uint8: (torch.int16, torch.int32, torch.int64),
    torch.int8: (torch.int16, torch.int32, torch.int64),
    torch.int16: (torch.int32, torch.int64),
    torch.int32: (torch.int64,),
}


@dataclass(frozen=True)
class WeightUpdate:
    """One change to a model: `value` (None: the place becomes None) goes to `slot`.

    `how`: "copy" into the tensor; "rebind" it to new memory (another dtype); "materialise" a lazy one; "swap" its
    inside, if it has no values ("meta") or wraps other tensors; "replace" what is registered (None, or by None). `key`:
    of the value in the files.
    """

    how: str
    slot: Slot
    value: Any
    key: str = ""

    @property
    def target(self) -> Any:
        """The notebook's tensor, or None."""
        return self.slot.tensor


@dataclass(frozen=True)
class StagedWeights:
    """Weights that were read and match: the argument of `load_weights`. `models`: the ids of each model's modules;
    `notes`: sentences for the user; `not_finite`: one about weights with NaN or Inf."""

    folder: Path
    puts: tuple[WeightUpdate, ...]
    models: Mapping[str, frozenset[int]]
    notes: tuple[str, ...] = ()
    not_finite: str = ""


def check_weights(models: Mapping[str, Any], folder: Path, rebuilt: Collection[str] = ()) -> StagedWeights:
    """In the notebook: read what `collect_weights` wrote and compare it with the notebook's models. Changes nothing.

    Names and shapes must be the same (of `rebuilt` models the names), and weights tied here must be equal. If only the
    dtype differs, the notebook's is kept if it holds every value exactly (bfloat16 in float32); otherwise the trained
    one is used. `StagedWeights.notes` says so.

    Raises:
        TpuMagicsError: the files are incomplete, or do not match; it names the differences and how to load them
            yourself.
    """
    manifest = weights_files.read_manifest(folder)
    notes: list[str] = []
    pairs: dict[tuple[str, str], tuple[Slot, ManifestEntry]] = {}
    for model, module in models.items():
        there = manifest.models.get(model)
        if there is None:
            raise TpuMagicsError(
                f"The worker returned no weights for `{model}`.", f"{folder} has none.", "Train again."
            )
        matched, different = match(module, there, reshaped=model in rebuilt)
        if serious := [text for text, matters in different.items() if matters]:
            raise _other_structure(model, serious, tuple(manifest.models), folder)
        notes.extend(f"{model}: {text}. It is not saved with the model, so it was not updated." for text in different)
        pairs.update({(model, slot.name): (slot, entry) for slot, entry in matched})
    tensors = weights_files.map_tensors(folder, manifest)
    values = {name: tensors[entry.key] for name, (_, entry) in pairs.items() if entry.state == "data"}
    puts = list(_plan(pairs, values))
    if broken := [*_broken_ties(models, values), *_broken_views(puts)]:
        raise _came_apart(broken, tuple(manifest.models), folder)
    notes.extend(_dtype_notes(pairs))
    parts = {name: frozenset(map(id, module.modules())) for name, module in models.items()}
    return StagedWeights(folder, tuple(puts), parts, tuple(notes), _not_finite(pairs, manifest.not_finite))


def _not_finite(pairs: Mapping[tuple[str, str], tuple[Slot, ManifestEntry]], found: Mapping[str, str]) -> str:
    """About trained parameters, and buffers with NaN: a mask may hold -inf."""
    bad = [
        (model, name, entry, found[entry.key])
        for (model, name), (_, entry) in pairs.items()
        if entry.key in found and (entry.requires_grad or found[entry.key] == "NaN")
    ]
    if not bad:
        return ""
    model, name, entry, what = next((one for one in bad if one[2].kind == "parameter"), bad[0])
    more = f", and {len(bad) - 1} more contain such values" if len(bad) > 1 else ""
    return f"The trained weights are not finite: {entry.kind} `{name}` of `{model}` contains {what}{more}."


def _other_structure(model: str, different: Sequence[str], models: Sequence[str], folder: Path) -> TpuMagicsError:
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return TpuMagicsError(
        f"The structure of the trained `{model}` differs from the model in the notebook, so nothing was loaded.",
        f"{'; '.join(different[:_SHOWN])}{more}. The function changed the model (LoRA, resize_token_embeddings and "
        "some wrappers do).",
        f"The trained weights are kept in {folder}. Make the same change to `{model}` in the notebook, then: "
        f"{weights_files.recipe(folder, models, model)}. Or change the model before training and pass it as an "
        "argument.",
    )


# -- ties --------------------------------------------------------------------------------------------------------------
def _broken_ties(models: Mapping[str, Any], values: Mapping[tuple[str, str], Any]) -> list[str]:
    groups = [[name for name in group if name in values] for group in record_ties(models)]
    return unequal([group for group in groups if len(group) > 1], values)


def _came_apart(broken: Sequence[str], models: Sequence[str], folder: Path) -> TpuMagicsError:
    return TpuMagicsError(
        "Weights that are tied in the notebook are not tied in the worker, so nothing was loaded.",
        f"They have different values: {'; '.join(broken[:_SHOWN])}. Moving a model to an XLA device unties its "
        "weights, and the optimizer then trains them separately.",
        "Tie them again in the function, after the model is moved and before the optimizer is created "
        f"(model.tie_weights() in transformers). The trained weights are kept: {weights_files.recipe(folder, models)}",
    )


def _broken_views(puts: Sequence[WeightUpdate]) -> list[str]:
    """Different tensors that share memory here (one is a view of the other) and whose values contradict each other."""
    groups: dict[int, list[WeightUpdate]] = defaultdict(list)
    for put in puts:
        if put.how in ("copy", "rebind") and layout_of(put.target) == "strided":
            groups[put.target.untyped_storage().data_ptr()].append(put)
    overlapping = [group for group in groups.values() if len(group) > 1 and _overlap([put.target for put in group])]
    return [" and ".join(f"`{put.slot.name}`" for put in group) for group in overlapping if not _all_fit(group)]


def _overlap(tensors: Sequence[Any]) -> bool:
    end = 0
    for tensor in sorted((t for t in tensors if t.numel()), key=lambda t: int(t.data_ptr())):
        if tensor.data_ptr() < end:
            return True
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        end = max(end, tensor.data_ptr() + (last + 1) * tensor.element_size())
    return False


def _all_fit(group: Sequence[WeightUpdate]) -> bool:
    """Tried on a copy of their shared memory."""
    if any(put.how == "rebind" for put in group):
        return False
    memory = group[0].target.untyped_storage().clone()
    trial = [_view(put.target, memory) for put in group]
    with torch.no_grad():
        for view, put in zip(trial, group, strict=True):
            view.copy_(put.value)
    return all(same_bits(view, put.value.to(view.dtype)) for view, put in zip(trial, group, strict=True))


def _view(like: Any, memory: Any) -> Any:
    """A view of `memory` with the form that `like` has in its own."""
    return torch.empty(0, dtype=like.dtype).set_(memory, like.storage_offset(), like.shape, like.stride())


# -- the plan ----------------------------------------------------------------------------------------------------------
def _plan(
    pairs: Mapping[tuple[str, str], tuple[Slot, ManifestEntry]], values: Mapping[tuple[str, str], Any]
) -> Iterator[WeightUpdate]:
    """What to do, once for each tensor of the notebook."""
    seen: set[int] = set()
    for name, (slot, entry) in pairs.items():
        home = state_of(slot.tensor)
        if home == entry.state != "data":
            continue
        put = WeightUpdate(_how(home, slot.tensor, values.get(name)), slot, values.get(name), entry.key)
        if put.how == "replace" or id(put.target) not in seen:
            yield put
        seen.add(id(put.target))


def _how(home: str, target: Any, value: Any) -> str:
    if value is None or home == "none":
        return "replace"
    if home != "data":
        return {"lazy": "materialise", "meta": "swap"}[home]
    if not has_own_memory(target):
        return "swap"
    dense = layout_of(target) == "strided"
    exact = target.dtype == value.dtype or target.dtype in _EXACT_IN.get(value.dtype, ())
    # Several indices of an expanded tensor share memory, which copy_ rejects.
    expanded = dense and any(step == 0 and size > 1 for step, size in zip(target.stride(), target.shape, strict=True))
    fits = exact and target.shape == value.shape
    return "copy" if dense and fits and not expanded else "rebind"


def _dtype_notes(pairs: Mapping[tuple[str, str], tuple[Slot, ManifestEntry]]) -> Iterator[str]:
    changed: Counter[tuple[str, str, str, bool]] = Counter()
    for (model, _), (slot, entry) in pairs.items():
        home = state_of(slot.tensor)
        there = getattr(torch, entry.dtype, None)
        if home == "data" and entry.state == "data" and there is not None and slot.tensor.dtype != there:
            kept = slot.tensor.dtype in _EXACT_IN.get(there, ())
            changed[(model, str(slot.tensor.dtype).removeprefix("torch."), entry.dtype, kept)] += 1
    for (model, here, trained, kept), count in changed.items():
        tensors = "1 tensor was" if count == 1 else f"{count} tensors were"
        end = (
            f"stay {here} in the notebook (no value changes)"
            if kept
            else f"are now {trained} in the notebook too (before: {here})"
        )
        yield f"{model}: {tensors} {trained} in the worker and {end}."


# -- a model and the manifest -----------------------------------------------------------------------------------------


_STATES = {"none": "None", "lazy": "not initialised", "meta": "without values (meta device)"}


def match(
    module: Any, there: Mapping[str, ManifestEntry], *, reshaped: bool = False
) -> tuple[list[tuple[Slot, ManifestEntry]], dict[str, bool]]:
    """Slots with their entries, and {difference: whether it matters} of those that do not match. `reshaped`: tensors
    may have other shapes now.

    A buffer that neither side saves with the model does not matter: it is a cache derived from the model, such as a
    table of angles.
    """
    here = {slot.name: slot for slot in slots(module)}
    matched: list[tuple[Slot, ManifestEntry]] = []
    different: dict[str, bool] = {}
    for name in dict.fromkeys((*here, *there)):
        slot, entry = here.get(name), there.get(name)
        difference = _difference(name, slot, entry, reshaped)
        if difference is not None:
            different[difference] = any(side is not None and _is_saved(side) for side in (slot, entry))
        elif slot is not None and entry is not None:
            matched.append((slot, entry))
    return matched, different


def _is_saved(side: Slot | ManifestEntry) -> bool:
    return side.kind == "parameter" or side.persistent


def _difference(name: str, slot: Slot | None, entry: ManifestEntry | None, reshaped: bool = False) -> str | None:
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
    if reshaped and home == entry.state == "data" and layout_of(slot.tensor) == entry.layout:
        return None
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
