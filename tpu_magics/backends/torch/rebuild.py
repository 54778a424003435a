"""Rebuilds Accelerators and Trainers of the notebook in a worker, for the rank's device.

accelerate 1.15.0 (state.py: PartialState, AcceleratorState and GradientState each share one dict among all instances,
per thread; accelerator.py; data_loader.py) and transformers 5.23.0 (trainer.py).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpu_magics.backends.torch import cpu_only, lightning, notebook_devices, precision_request
from tpu_magics.errors import TpuMagicsError

STATES = ("PartialState", "AcceleratorState", "GradientState")
# State that an Accelerator has gathered since it was created, and training continues with.
GATHERED = (
    "trackers",
    "step",
    "project_configuration",
    "_custom_objects",
    "_load_model_state_pre_hook",
    "_save_model_state_pre_hook",
)
PREPARED = "_is_accelerate_prepared"  # accelerate's mark on what it has prepared


# -- accelerate's state -----------------------------------------------------------------------------------------------
_notebook: dict[str, dict[str, Any]] = {}  # the notebook's shared dicts
_settings: dict[str, Any] = {}  # of gradient accumulation, which belong to all Accelerators
_built: list[str] = []  # which of them exist in the notebook


def remember_state() -> None:
    """In a worker's main thread, which was the notebook's: keep the state that accelerate's instances share."""
    module = sys.modules.get("accelerate.state")
    if module is not None:
        _notebook.update({name: getattr(module, name)._shared_state for name in STATES})
        _settings.update(_notebook["GradientState"].get("plugin_kwargs", {}))
        _built.extend(name for name in STATES if _notebook[name])


def adopt_state() -> None:
    """In the thread of this worker's first rank: the notebook's instances share this rank's state from now on. It is
    empty until an Accelerator or a PartialState is created."""
    module = sys.modules.get("accelerate.state")
    for name, shared in _notebook.items():
        shared.clear()
        holder = vars(getattr(module, name))["_shared_state"]
        if holder is not shared:  # not a plain dict, but one per thread
            holder._storage = shared


# -- what the function can reach --------------------------------------------------------------------------------------
def rebuild(items: Iterable[tuple[str, Any]], replicas: int) -> None:
    """Rebuild the notebook's Accelerators and Trainers among `items` for this rank. On the rank's thread, before its
    function."""
    if "PartialState" in _built:
        with warnings.catch_warnings():
            # accelerate 1.15 asks torch_xla for the device by a deprecated name, which "error" filters would raise.
            warnings.simplefilter("ignore", DeprecationWarning)
            sys.modules["accelerate.state"].PartialState()
    values = [value for _, value in items]
    notebook_devices.rehash(values)
    _forget_workers(values)
    lightning.rebuild(values)
    trainers = list(_instances(values, "transformers.trainer", "Trainer"))
    others = {id(trainer): _other_models(trainer) for trainer in trainers}
    _forget_marks(values)
    accelerators = _wanted(values)
    if not accelerators:
        return
    if replicas > 1:
        raise _several_devices(bool(trainers))
    owners = {id(trainer.accelerator): trainer for trainer in trainers}
    for accelerator in accelerators:
        trainer = owners.get(id(accelerator))
        _renew_accelerator(accelerator, trainer)
        for model in others.get(id(trainer), ()):
            accelerator.prepare_model(model, evaluation_mode=True)
    _keep_accumulation(accelerators[-1])


def _instances(values: Iterable[Any], module: str, name: str) -> Iterator[Any]:
    cls = getattr(sys.modules.get(module), name, None)
    return (value for value in values if isinstance(cls, type) and issubclass(type(value), cls))


def _forget_workers(values: Iterable[Any]) -> None:
    """DataLoaders with persistent workers start new ones: those of the notebook are no children of this process. (torch
    2.9 and 2.15, utils/data/dataloader.py: `_iterator`, whose end would wait for its workers.)"""
    for loader in _instances(values, "torch.utils.data.dataloader", "DataLoader"):
        iterator = vars(loader).get("_iterator")
        if iterator is not None:
            iterator._shutdown = True
            loader._iterator = None


def _forget_marks(values: Iterable[Any]) -> None:
    """What was prepared for the notebook's CPU is not prepared for this rank."""
    for module in _instances(values, "torch.nn", "Module"):
        vars(module).pop(PREPARED, None)
    for loader in _instances(values, "accelerate.data_loader", "DataLoaderAdapter"):
        vars(loader).pop(PREPARED, None)


def _wanted(values: Sequence[Any]) -> list[Any]:
    """The notebook's Accelerators that are reachable, or that prepared something reachable, in the order of their
    creation."""
    reached = {id(value) for value in values}
    known = list(cpu_only.built)
    found = [one for one in known if id(one) in reached or any(id(part) in reached for part in _prepared_by(one))]
    for accelerator in _instances(values, "accelerate.accelerator", "Accelerator"):
        if all(accelerator is not one for one in known):
            raise _unknown()
    return found


def _prepared_by(accelerator: Any) -> list[Any]:
    return [*accelerator._models, *accelerator._optimizers, *accelerator._schedulers, *accelerator._dataloaders]


# -- one of them ------------------------------------------------------------------------------------------------------
def _renew_accelerator(accelerator: Any, trainer: Any) -> None:
    """Create it again with the same arguments, on this rank's device. `trainer`: its Trainer, or None."""
    args, kwargs = cpu_only.built[accelerator]
    had = dict(vars(accelerator))
    arguments = None
    if trainer is not None:
        arguments = trainer.args
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)
        _ = arguments.device
    with precision_request.for_trainer(arguments):
        sys.modules["accelerate.accelerator"].Accelerator.__init__(accelerator, *args, **kwargs)
    vars(accelerator).update({name: had[name] for name in GATHERED if name in had})
    if trainer is None:
        _prepare_again(accelerator, had)
    else:
        _renew_trainer(trainer, had)


def _prepare_again(accelerator: Any, had: dict[str, Any]) -> None:
    """Prepare again what it had prepared; optimizers and schedulers are already wrapped and share its state."""
    models = [accelerator.unwrap_model(model, keep_fp32_wrapper=False) for model in had["_models"]]
    objects = [*models, *had["_optimizers"], *had["_schedulers"]]
    if objects:
        results = accelerator.prepare(*objects)
        renewed = results if len(objects) > 1 else (results,)
        if any(new is not old for new, old in zip(renewed, (*had["_models"], *objects[len(models) :]), strict=True)):
            raise _cannot_prepare_again()
    for loader in had["_dataloaders"]:
        _renew_loader(accelerator, loader)


def _renew_loader(accelerator: Any, loader: Any) -> None:
    """Make the notebook's loader this rank's: it is sharded over the ranks and moves its batches."""
    if not hasattr(loader, "base_dataloader"):  # accelerate 1.0 and later
        raise _cannot_prepare_again()
    new = accelerator.prepare_data_loader(loader.base_dataloader)
    new._loader.iteration = loader.iteration  # counts epochs, for the order of a seeded sampler
    vars(new)[PREPARED] = True
    object.__dict__["__class__"].__set__(loader, type(new))  # accelerate's own `__class__` is a property
    loader.__dict__ = new.__dict__
    accelerator._dataloaders[-1] = loader


def _renew_trainer(trainer: Any, had: dict[str, Any]) -> None:
    """A Trainer prepares its model and optimizer itself, each time it trains."""
    for model in had["_models"]:
        trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    trainer.state.is_local_process_zero = trainer.is_local_process_zero()
    trainer.state.is_world_process_zero = trainer.is_world_process_zero()


def _other_models(trainer: Any) -> list[Any]:
    """Models that a subclass prepared besides the one it trains, such as the reference model of TRL's trainers."""
    models = _instances(vars(trainer).values(), "torch.nn", "Module")
    own = (trainer.model, trainer.model_wrapped)
    return [model for model in models if PREPARED in vars(model) and all(model is not one for one in own)]


def _keep_accumulation(accelerator: Any) -> None:
    """Keep the notebook's gradient accumulation settings, even if they changed after the Accelerator was created."""
    if _settings:
        accelerator.gradient_state.plugin_kwargs = dict(_settings)


# -- what cannot be ---------------------------------------------------------------------------------------------------
def _several_devices(trainer: bool) -> TpuMagicsError:
    what = "A Trainer" if trainer else "An Accelerator"
    return TpuMagicsError(
        f"{what} from an earlier cell cannot train on this TPU.",
        "On TPU v2 and v3, each process drives two devices, in two threads that would share it.",
        f"Create the {what.split()[-1]} inside the training function.",
    )


def _unknown() -> TpuMagicsError:
    return TpuMagicsError(
        "An Accelerator was created before %tpu_init.",
        "Its arguments were not recorded, so a worker cannot create its own.",
        "Run %tpu_init first, then run the cell that creates the Accelerator (or the Trainer) again.",
    )


def _cannot_prepare_again() -> TpuMagicsError:
    return TpuMagicsError(
        "The objects that accelerator.prepare() returned in an earlier cell cannot be prepared again in a worker.",
        "prepare() returns another object for the notebook's CPU than for this rank's device.",
        "Call accelerator.prepare() inside the training function.",
    )
