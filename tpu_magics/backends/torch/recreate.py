"""Accelerators, Trainers and optimizers that a worker made, created again in the notebook for its CPU (rebuild.py: the
way there).

They are pickled without what belongs to the worker's process. In the notebook each is an empty object until all changes
are applied; then `finish` fills it as its own class does. accelerate 1.15.0 and transformers 5.23.0.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.torch import cpu_only, lightning
from tpu_magics.backends.torch.rebuild import GATHERED, PREPARED

TRACKER = "tpu_magics"
"""The name of our own tracker, which sends an Accelerator's values to the run's records."""
_MISSING: Any = object()
_WRAPPERS = (
    ("accelerate.optimizer", "AcceleratedOptimizer", "optimizer"),
    ("accelerate.scheduler", "AcceleratedScheduler", "scheduler"),
)
_LOADERS = ("accelerate.data_loader", ("DataLoaderStateMixin", "MpDeviceLoaderWrapper"))
_LISTS = ("_models", "_optimizers", "_schedulers", "_dataloaders")

# Attributes that belong to the process, and their value in the notebook; _MISSING: none.
_OF_PROCESS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("torch.utils.data", "DataLoader", {"_iterator": None}),
    ("transformers.trainer_callback", "CallbackHandler", {"train_dataloader": None, "eval_dataloader": None}),
    (
        "transformers.training_args",
        "TrainingArguments",
        {cpu_only.DEVICE: _MISSING, cpu_only.STATE: _MISSING, "_n_gpu": _MISSING},
    ),
)


# -- in the worker ----------------------------------------------------------------------------------------------------
# Attributes of optimizers that belong to a process (torch 2.9 and 2.15).
OPTIMIZER_SKIPS = frozenset(
    {
        *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks"),
        *("_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks"),
        *("_optimizer_load_state_dict_post_hooks", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"),
    }
)


def recipe(value: Any) -> tuple[Any, ...] | None:
    """How to create it in the notebook, as `__reduce__` returns it; None if pickle may take it as it is."""
    kind = type(value)
    if _is(kind, "accelerate.accelerator", "Accelerator"):
        return _of_accelerator(value) if value in cpu_only.built else None
    for module, name, inner in _WRAPPERS:
        if _is(kind, module, name):
            return _of_wrapper(value, vars(value)[inner])
    if any(_is(kind, _LOADERS[0], name) for name in _LOADERS[1]):
        return _of_wrapper(value, cpu_only.given_loaders.get(value))
    if any(_is(kind, f"{package}.{lightning.RESULT}", "_ResultCollection") for package in lightning.PACKAGES):
        return kind, (value.training,)  # empty: what it has is compared with the strategy of the next run
    if _is(kind, "torch.optim.optimizer", "Optimizer"):
        return of_optimizer(value)
    if _is(kind, "torch.nn", "Module"):
        return _of_parametrized(value) or _of_module(value)
    for module, name, changed in _OF_PROCESS:
        if _is(kind, module, name):
            return _with_attributes(value, changed)
    return None


def of_optimizer(optimizer: Any) -> tuple[Any, ...] | None:
    """With its own attributes, which torch's `Optimizer.__getstate__` leaves out (LBFGS has its parameters there); None
    for one with a way of its own. Not what belongs to a process: hooks, and a `step` that a scheduler has wrapped."""
    kind = type(optimizer)
    plain = sys.modules["torch.optim.optimizer"].Optimizer
    if any(getattr(kind, name) is not getattr(plain, name) for name in ("__getstate__", "__reduce_ex__", "__reduce__")):
        return None
    own = {
        name: item
        for name, item in vars(optimizer).items()
        if name not in OPTIMIZER_SKIPS and not isinstance(item, types.MethodType)
    }
    return copyreg.__newobj__, (kind,), own  # type: ignore[attr-defined]


def _of_parametrized(module: Any) -> tuple[Any, ...] | None:
    """A module with parametrizations is of a class of its own, which refuses pickle; None for any other. (torch 2.9 and
    2.15, nn/utils/parametrize.py)"""
    kind = class_recipe(module)
    return None if kind[1] is None else (_parametrized, kind, dict(vars(module)), None, None, _fill)


def class_recipe(module: Any) -> tuple[type, tuple[str, ...] | None]:
    """Its class, and the names of its parametrizations; None if it has none."""
    parametrize, cls = sys.modules.get("torch.nn.utils.parametrize"), type(module)
    own = parametrize is not None and cls.__module__ == parametrize.__name__ and parametrize.is_parametrized(module)
    return (cls.__bases__[0], tuple(module.parametrizations)) if own else (cls, None)


def class_of(kind: tuple[type, tuple[str, ...] | None]) -> type:
    """The class of such a module."""
    cls, names = kind
    return cls if names is None else type(_parametrized(cls, names))


def _parametrized(cls: Any, names: tuple[str, ...]) -> Any:
    from torch.nn.utils import parametrize

    module = cls.__new__(cls)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def _fill(module: Any, state: dict[str, Any]) -> None:
    vars(module).update(state)


def _is(kind: type, module: str, name: str) -> bool:
    """accelerate's loaders say that they are of another class: `isinstance` believes it."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and issubclass(kind, cls)


def _of_accelerator(accelerator: Any) -> tuple[Any, ...]:
    args, kwargs = cpu_only.built[accelerator]
    had = vars(accelerator)
    gathered = {name: had[name] for name in GATHERED if name in had}
    if "trackers" in gathered:
        gathered["trackers"] = [one for one in gathered["trackers"] if one.name != TRACKER and _is_picklable(one)]
    state = {
        "args": args,
        "kwargs": dict(kwargs),
        "arguments": cpu_only.arguments_of.get(accelerator),
        "gathered": gathered,
        "models": list(had["_models"]),
        "prepared": [one for name in _LISTS[1:] for one in had[name]],
    }
    return new, (type(accelerator),), state, None, None, _wait_for_accelerator


def _is_picklable(tracker: Any) -> bool:
    """Whether a tracker holds no file or connection."""
    try:
        pickle.dumps(tracker)
    except Exception:
        return False
    return True


def _of_wrapper(wrapper: Any, inner: Any) -> tuple[Any, ...] | None:
    """`inner`: what was prepared, None if it is not known."""
    owner = next((one for one in cpu_only.built if _has_prepared(one, wrapper)), None)
    if owner is None or inner is None:
        return None
    state = owner, inner, getattr(getattr(wrapper, "_loader", wrapper), "iteration", None)
    return new, (type(wrapper),), state, None, None, _wait_for_wrapper


def _has_prepared(accelerator: Any, wrapper: Any) -> bool:
    return any(one is wrapper for name in _LISTS for one in vars(accelerator).get(name, ()))


def _of_module(module: Any) -> tuple[Any, ...] | None:
    """Without the `forward` that accelerate put there for mixed precision."""
    own = vars(module)
    changed = {name: _MISSING for name in (PREPARED, "_original_forward") if name in own}
    original = own.get("_original_forward")
    if original is not None:
        of_class = getattr(original, "__func__", None) is type(module).forward
        changed["forward"] = _MISSING if of_class else original
    return _with_attributes(module, changed) if changed else None


def _with_attributes(value: Any, changed: Mapping[str, Any]) -> tuple[Any, ...] | None:
    reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return None
    state = {name: item for name, item in reduced[2].items() if name not in changed}
    state.update({name: item for name, item in changed.items() if item is not _MISSING and name in reduced[2]})
    return (*reduced[:2], state, *reduced[3:])


# -- in the notebook --------------------------------------------------------------------------------------------------
@dataclass
class _Waiting:
    """Objects of one result that are empty until all changes are applied."""

    accelerators: list[tuple[Any, dict[str, Any]]]
    wrappers: dict[int, tuple[Any, Any, Any, Any]]  # by id: wrapper, its Accelerator, what was prepared, iteration


_waiting = _Waiting([], {})


def new(kind: type) -> Any:
    """An empty object, to be filled."""
    return object.__new__(kind)


def _wait_for_accelerator(accelerator: Any, state: dict[str, Any]) -> None:
    _waiting.accelerators.append((accelerator, state))


def _wait_for_wrapper(wrapper: Any, state: tuple[Any, Any, Any]) -> None:
    _waiting.wrappers[id(wrapper)] = (wrapper, *state)


def begin() -> None:
    """Before results are read."""
    _waiting.accelerators.clear()
    _waiting.wrappers.clear()


def finish() -> list[tuple[Any, str]]:
    """Fill all objects that were read; returns those for which that failed, and why."""
    problems: list[tuple[Any, str]] = []
    for accelerator, state in _waiting.accelerators:
        _try([accelerator], lambda a=accelerator, s=state: _fill_accelerator(a, s), problems)  # type: ignore[misc]
    failed = {id(one) for one, _ in problems}
    for wrapper, owner, inner, iteration in list(_waiting.wrappers.values()):
        if id(owner) not in failed and id(wrapper) in _waiting.wrappers:
            _try([wrapper], lambda w=wrapper, o=owner, i=inner, n=iteration: _prepare(o, [(w, i, n)]), problems)  # type: ignore[misc]
    problems += [(one[0], "its Accelerator") for one in _waiting.wrappers.values() if id(one[1]) in failed]
    begin()
    return problems


def _try(objects: Iterable[Any], fill: Callable[[], None], problems: list[tuple[Any, str]]) -> None:
    try:
        fill()
    except Exception as error:  # of another version, or from the user's own classes
        problems += [(one, f"{type(error).__name__}: {error}") for one in objects]


def _fill_accelerator(accelerator: Any, state: dict[str, Any]) -> None:
    arguments = state["arguments"]
    if arguments is not None:
        _ = arguments.device  # of this process; it resets the state that Accelerators share
    type(accelerator).__init__(accelerator, *state["args"], **state["kwargs"])
    vars(accelerator).update(state["gathered"])
    for model in state["models"]:
        vars(model).pop(PREPARED, None)
        accelerator.prepare(model) if arguments is None else accelerator.prepare_model(model)
    own = [_waiting.wrappers[id(one)] for one in state["prepared"] if id(one) in _waiting.wrappers]
    _prepare(accelerator, [(wrapper, inner, iteration) for wrapper, _, inner, iteration in own])


def _prepare(accelerator: Any, waiting: list[tuple[Any, Any, Any]]) -> None:
    """Let the Accelerator prepare what is inside the wrappers, and make them what it returns."""
    for wrapper, inner, iteration in waiting:
        _waiting.wrappers.pop(id(wrapper), None)
        made = accelerator.prepare(inner)
        if iteration is not None:
            made.iteration = iteration  # counts epochs, for the order of a seeded sampler
        object.__dict__["__class__"].__set__(wrapper, type(made))  # accelerate's own `__class__` is a property
        object.__setattr__(wrapper, "__dict__", vars(made))
        for name in _LISTS:
            known = vars(accelerator)[name]
            known[:] = [wrapper if one is made else one for one in known]
