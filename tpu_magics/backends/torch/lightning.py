"""Lightning's Trainer: on the CPU in the notebook, and in a worker on the rank's device, as one of its ranks.

Lightning 2.6 (`lightning.pytorch` and `pytorch_lightning` have the same code). It trains on a TPU only where it finds
one, and starts the processes itself; a run has started them, and in a rehearsal there is none.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from tpu_magics.backends.torch import runtime, trainer
from tpu_magics.backends.torch.lightning_strategies import STATE, device_and_strategy
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs import events

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
CONNECTOR = "trainer.connectors.accelerator_connector"  # the module that chooses device, strategy and precision
RESULT = "trainer.connectors.logger_connector.result"  # that of what a loop logs
RULES: Mapping[str, Mapping[str, Any]] = {
    rule: fields
    for package in PACKAGES
    for rule, fields in (
        (f"{package}.{CONNECTOR}._AcceleratorConnector", {"only": frozenset({"strategy"})}),
        (f"{package}.strategies.strategy.Strategy", {"only": frozenset(STATE)}),
        # what a loop has logged, with the strategy of its run: the trainer keeps the metrics, and a next fit logs anew
        (f"{package}.{RESULT}._ResultCollection", {"opaque": True}),
        (f"{package}.callbacks.progress.progress_bar.ProgressBar", {"opaque": True}),
    )
}
_PLAIN = (
    "auto",
    "ddp",
    "ddp_spawn",
    "ddp_fork",
    "ddp_notebook",
    "ddp_find_unused_parameters_true",
    "xla",
    "single_xla",
)
_MADE = "_tpu_magics_made"  # of a connector for a run's device: the arguments that it was made with


def choose_device(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Make each Trainer that asks for a TPU, or does not say, one of the notebook's CPU, or of the rank's device.
    `module`: the one of CONNECTOR. Returns how to undo it, or why it is not possible."""
    cls = getattr(module, "_AcceleratorConnector", None)
    if cls is None:
        return (
            "This version of Lightning has no `_AcceleratorConnector` (2.6 has it), so its Trainer may train on the "
            "CPU. Move the model and the batches to the device in your own loop."
        )
    original = cls.__init__

    @functools.wraps(original)
    def initialise(connector: Any, *args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("accelerator", "auto")
        if args or not (asked in ("auto", "tpu") or isinstance(asked, module.XLAAccelerator)):
            original(connector, *args, **kwargs)
            _mention_cpu(asked)
            return
        wanted = {**kwargs, "accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto"}
        if not in_notebook() and runtime.running():
            wanted.update(_of_this_rank(module, kwargs))
        original(connector, **wanted)
        vars(connector)[_MADE] = kwargs

    def reduce(connector: Any, protocol: Any) -> Any:
        if _MADE not in vars(connector) or not runtime.running():
            return object.__reduce_ex__(connector, protocol)
        return _connector_at_home, (cls.__module__, vars(connector)[_MADE]), {"strategy": connector.strategy}

    def undo() -> None:
        cls.__init__ = original
        del cls.__reduce_ex__

    cls.__init__, cls.__reduce_ex__ = initialise, reduce
    return undo


def _connector_at_home(module: str, kwargs: dict[str, Any]) -> Any:
    """The connector of a Trainer that was made in a worker, as the notebook would have made it."""
    return import_module(module)._AcceleratorConnector(**kwargs)


def _mention_cpu(asked: Any) -> None:
    if asked == "cpu" and runtime.running():
        trainer.write(
            events.Warned,
            code="lightning-cpu",
            text="Lightning's Trainer trains on the host's CPU: it was made with accelerator=\"cpu\". Leave that out, "
            'or write accelerator="tpu": in a run that is the run\'s device.',
        )


def rebuild(values: Iterable[Any]) -> None:
    """Make the notebook's Trainers among `values` Trainers of this rank. On the rank's thread, before its function."""
    classes = tuple(sys.modules[one].Trainer for one in PACKAGES if hasattr(sys.modules.get(one), "Trainer"))
    for value in values:
        if isinstance(value, classes) and _MADE in vars(value._accelerator_connector):
            _renew(value._accelerator_connector)


def _renew(connector: Any) -> None:
    """Its strategy stays the same object, with the training's state, and becomes this rank's."""
    strategy = connector.strategy
    connector.__init__(**vars(connector)[_MADE])
    now = connector.strategy
    vars(now).update({name: vars(strategy)[name] for name in STATE})
    strategy.__class__, strategy.__dict__ = type(now), vars(now)
    connector.strategy = strategy


# -- in a worker -------------------------------------------------------------------------------------------------------
def _of_this_rank(module: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a connector for this rank, besides those that the person gave."""
    _refuse_strategy(module, kwargs.get("strategy", "auto"))
    precision = kwargs.get("precision")
    if str(precision).startswith("16"):
        raise TpuMagicsError(
            f"Lightning's Trainer was made with precision={precision!r}, which a TPU does not have.",
            "A TPU computes in bf16, which has the range of float32 and needs no loss scaling.",
            'Write precision="bf16-mixed" (or "bf16-true", which keeps the weights in bf16 too).',
        )
    accelerator, strategy = device_and_strategy(module, precision)
    return {"accelerator": accelerator, "strategy": strategy, "devices": "auto", "precision": None}


def _refuse_strategy(module: Any, strategy: Any) -> None:
    usual = (module.DDPStrategy, module.SingleDeviceStrategy, module.XLAStrategy)
    if strategy in _PLAIN if isinstance(strategy, str) else isinstance(strategy, usual):
        return
    raise TpuMagicsError(
        f"Lightning's strategy {strategy!r} is not for a TPU.",
        "It is for GPUs. In a run each rank has the whole model, and the gradients are averaged over the ranks.",
        'Leave it out, or write strategy="auto". A model that does not fit on one chip: %%tpu_train --spmd, with a '
        "loop of your own.",
    )
