"""Lightning's accelerator, strategies and precision for a rank of a run (lightning.py): subclasses of its own, made of
the package that the Trainer is of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tpu_magics.backends.torch import runtime
from tpu_magics.errors import TpuMagicsError

# What a strategy has of the training, besides what it is. Lightning makes its wrappers of optimizers anew for each fit.
STATE = ("_lightning_module", "_model", "_optimizers", "lr_scheduler_configs")
# The methods of a precision plugin that are about dtypes. Lightning's own for XLA sets variables that torch_xla reads
# before the first tensor, and has no autocast.
_DTYPES = ("convert_module", "convert_input", "convert_output", "tensor_init_context", "module_init_context")


def device_and_strategy(module: Any, precision: Any) -> tuple[Any, Any]:
    """For this rank. `module`: of Lightning's connector; `precision`: as the person gave it."""
    device = runtime.current()
    assert device is not None
    kinds = _xla(module) if device.device_type == "xla" else _tpu(module)
    accelerator, strategy = kinds(precision)
    return accelerator, strategy


@functools.cache
def _xla(module: Any) -> Any:
    import torch
    import torch_xla
    import torch_xla.runtime as xr

    from tpu_magics.backends.torch_xla import runtime as xla

    class RankAccelerator(module.XLAAccelerator):
        """The device of each rank; a rehearsal's too."""

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def auto_device_count() -> int:
            return int(xr.world_size())

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[Any]:
            return [torch.device("xla", index) for index in range(devices)]

    class RankPrecision(module.XLAPrecision):
        """XLA's step, with the dtypes of Lightning's plugins for other devices."""

        def __init__(self, precision: Any) -> None:
            super().__init__()
            plain = _plain_precision(module, precision, "xla")
            self.precision = plain.precision
            for name in (*_DTYPES, "forward_context"):
                setattr(self, name, getattr(plain, name))

    @_for_a_rank
    class RankStrategy(module.SingleDeviceXLAStrategy):
        """One rank."""

    @_for_a_rank
    class RanksStrategy(module.XLAStrategy):
        """One of several ranks: gradients are averaged at each step."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._launched = True

        def teardown(self) -> None:
            super().teardown()
            self._launched = True

        def process_dataloader(self, dataloader: object) -> Any:
            return dataloader

        def broadcast(self, obj: Any, src: int = 0) -> Any:
            """Lightning's own makes a graph of each object's size."""
            return super().broadcast(obj, src) if isinstance(obj, torch.Tensor) else xla.broadcast(obj, src)

    _sync_metrics(module.__name__.partition(".trainer.")[0])

    def make(precision: Any) -> tuple[Any, Any]:
        plugin = RankPrecision(precision)
        if xr.world_size() > 1:
            return RankAccelerator(), RanksStrategy(precision_plugin=plugin)
        return RankAccelerator(), RankStrategy(device=torch_xla.device(), precision_plugin=plugin)

    return make


@functools.cache
def _tpu(module: Any) -> Any:
    """TorchTPU: its device is like a GPU, for a single rank."""
    import torch

    class DeviceAccelerator(module.CUDAAccelerator.__mro__[1]):
        """The device of this rank."""

        def setup_device(self, device: Any) -> None: ...

        def teardown(self) -> None: ...

        def get_device_stats(self, device: Any) -> dict[str, Any]:  # noqa: ARG002
            return {}

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def parse_devices(devices: Any) -> Any:
            return devices

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[Any]:
            return [torch.device("tpu", index) for index in range(devices)]

        @staticmethod
        def name() -> str:
            return "tpu"

    @_for_a_rank
    class DeviceStrategy(module.SingleDeviceStrategy):
        """One rank."""

    def make(precision: Any) -> tuple[Any, Any]:
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise TpuMagicsError(
                "Lightning's Trainer trains on one rank with TorchTPU.",
                "It has no strategy for several ranks of the device tpu.",
                "Run %tpu_init -n 1, or train with torch_xla: pip install 'tpu-magics[torch]'.",
            )
        plugin = _plain_precision(module, precision, "tpu")
        return DeviceAccelerator(), DeviceStrategy(device=torch.device("tpu"), precision_plugin=plugin)

    return make


def _for_a_rank(cls: Any) -> Any:
    """A strategy of Lightning's for a run, where the processes are there. Each step of an evaluation is synced:
    without that, all of them are one graph. No base class: an instance of Lightning's own class becomes one of this."""
    for name in ("validation_step", "test_step", "predict_step"):
        setattr(cls, name, _synced(getattr(cls, name)))
    cls.reduce = _decided_on_host(cls.reduce)
    package = cls.__mro__[1].__module__.partition(".strategies")[0]
    cls.__reduce__ = lambda strategy: (strategy_at_home, (package,), kept(strategy))
    cls._configure_launcher = lambda _strategy: None
    return cls


def _synced(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _sync()
        return result

    return step


def _sync() -> None:
    device = runtime.current()
    assert device is not None
    device.step()


def _decided_on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    """Whole numbers are lengths and decisions, which Lightning then reads."""

    @functools.wraps(original)
    def reduce(strategy: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(tensor, "ndim", None) == 0 and not tensor.is_floating_point():
            tensor = tensor.cpu()
        return original(strategy, tensor, *args, **kwargs)

    return reduce


def _sync_metrics(package: str) -> None:
    """The metrics of an epoch are read one by one: after a sync, that splits no graph."""
    collection = import_module(f"{package}.trainer.connectors.logger_connector.result")._ResultCollection
    original = collection.metrics

    @functools.wraps(original)
    def metrics(self: Any, on_step: bool) -> Any:
        found = original(self, on_step)
        if not on_step and runtime.running():
            _sync()
        return found

    collection.metrics = metrics


def _plain_precision(module: Any, precision: Any, device: str) -> Any:
    """Lightning's plugin for a precision, as its connector has it for other devices."""
    flag = module._convert_precision_to_unified_args(precision) or "32-true"
    if flag == "bf16-mixed":
        return module.MixedPrecision(flag, device)
    if flag == "bf16-true":
        return module.HalfPrecision(flag)
    return module.DoublePrecision() if flag == "64-true" else module.Precision()


# -- home --------------------------------------------------------------------------------------------------------------
def kept(strategy: Any) -> dict[str, Any]:
    """What of a strategy goes home."""
    return {name: vars(strategy)[name] for name in STATE}


def strategy_at_home(package: str) -> Any:
    """The strategy of a Trainer that was made in a worker, for the notebook's CPU."""
    accelerator = import_module(f"{package}.accelerators").CPUAccelerator()
    return import_module(f"{package}.strategies").SingleDeviceStrategy(accelerator=accelerator)
