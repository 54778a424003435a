"""The device "tpu" in the notebook's process: registered, but without its runtime, so that workers can be forked.

torch_tpu 0.2.0 (_loader.py, _internal/device/_device_module.py, _internal/utils/hardware.py). Its runtime starts with
the first tensor on the device, and also with what only asks: autograd's start (the first backward on the CPU) asks how
many devices there are, and torch.manual_seed seeds all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tpu_magics.backends import pjrt_stand_in
from tpu_magics.backends.torch import randomness, runtime
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.worker import hidden_device, set_variables
from tpu_magics.errors import TpuMagicsError

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # "0": `import torch` does not import torch_tpu
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # "1": what XLA and torch_tpu log at level INFO is not written
VERSIONS = "torch_tpu 0.2.0 with torch 2.15.0"
INSTALL = "%pip install 'tpu-magics[torch-tpu]'"
# absl::SetMinLogLevel, as torch_tpu 0.2.0 has it.
_SET_LEVEL, _WARNING = "_ZN4absl12lts_2026052614SetMinLogLevelENS0_18LogSeverityAtLeastE", 1
# What we use of torch_tpu, and of torch for it, that is not public: module -> names.
PRIVATE = {
    "torch_tpu._loader": ("_init_device",),
    "torch_tpu._internal.utils.hardware": ("get_tpu_device_count", "get_tpu_topology"),
    "torch_tpu._internal.device._device_ops_backend": (
        *("_is_initialized", "get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all"),
        *("_get_cache_requests", "_get_cache_misses"),
    ),
    "torch_tpu._internal.compile._backend": ("TpuBackend",),
    "torch_tpu._internal.compile.compiler": ("StaticCompiler",),
    "torch_tpu._internal.compile.dynamic.dynamic_compiler": ("DynamicCompiler",),
    "torch_tpu._internal.compile.tpu_torch_compile": ("build_mlir", "traverse_and_compile"),
    "torch_tpu._internal.execution_mode.execution_mode_impl": ("_get_eager_mode", "_EagerMode"),
    "torch_tpu._internal.export.export": ("EagerLikeFxInterpreter",),
    "torch._dynamo.callback": ("callback_handler",),
    "torch._dynamo.symbolic_convert": ("InstructionTranslatorBase",),
    "torch._dynamo.trace_rules": ("add",),
    "torch._dynamo.utils": ("_compilation_metrics",),
}
_registered: list[int] = []  # the process
_autograd: list[int] = []  # the process in which it was started
_waiting: list[PostImport] = []


def rehearsed() -> bool:
    """Whether cells train on the CPU here: %tpu_init sets the variable by what the host has."""
    return os.environ.get("PJRT_DEVICE", "").upper().startswith("CPU")


def register() -> None:
    """Import torch_tpu and register "tpu" with torch, without starting the runtime (idempotent). On a host without a
    TPU, XLA's CPU plugin takes libtpu's place.

    Raises:
        TpuMagicsError: torch_tpu or the plugin is missing, or does not fit.
    """
    if _registered:
        return
    with quiet(), _variables({LOG_LEVEL: os.environ.get(LOG_LEVEL, "1"), AUTOLOAD: "0"}):
        rehearsal = rehearsed()
        if rehearsal:
            pjrt_stand_in.replace_libtpu(pjrt_stand_in.TORCH_TPU)
        loader = _imported()
        randomness.look_again()
        _raise_log_level()
        if rehearsal or not _hardware().get_tpu_device_count():  # the variable is wrong for this host
            use_cpu()
        _start_autograd()
        loader._init_device("tpu")
    _registered.append(os.getpid())
    _keep_quiet()


def use_cpu() -> None:
    """Make "tpu" XLA:CPU in this process, before the runtime starts; also on a host with a TPU."""
    pjrt_stand_in.replace_libtpu(pjrt_stand_in.TORCH_TPU)
    _hardware().get_tpu_device_count = _one


def prepare_notebook() -> None:
    """What cells need before they use TorchTPU in the notebook's process (idempotent)."""
    randomness.defer_seeds()
    if not _waiting:
        _waiting.append(PostImport())
        _waiting[0].when_imported("torch_tpu", lambda _module: _imported_by_notebook())


def _imported_by_notebook() -> None:
    randomness.look_again()
    _start_autograd()
    _keep_quiet()


def _start_autograd() -> None:
    """Start autograd where it does not see the device. With torch_tpu imported, the first backward() on the CPU would
    start TorchTPU's runtime, and a fork could not use it; without a TPU, it hangs (libtpu 0.0.52)."""
    if not _autograd:
        _autograd.append(os.getpid())
        with hidden_device():
            import torch

            torch.ones(1, requires_grad=True).sum().backward()


class _NoStream:
    """The stream of a device whose runtime does not run."""

    def is_capturing(self) -> bool:
        """Nothing runs, so nothing is captured."""
        return False


# Functions of torch 2.15 that start the runtime although nothing of the device is used: an optimizer's step on the CPU
# asks whether the accelerator's stream is being captured (optim/optimizer.py), and a loader with pin_memory=True
# (transformers' default) sets the device of its thread and pins its batches (utils/data). On XLA's CPU plugin pinning
# fails as well. Each, and what it returns for an argument in the notebook's process, until its runtime runs.
_KEPT_QUIET: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch.accelerator", "current_stream", lambda *_, **__: _NoStream()),
    ("torch.accelerator", "current_device_index", lambda: 0),
    ("torch.accelerator", "set_device_index", lambda _device: None),
    ("torch", "Tensor.pin_memory", lambda tensor, *_, **__: tensor),
    ("torch", "Tensor.is_pinned", lambda _tensor, *_, **__: False),
)
_quiet: list[str] = []  # those that are replaced


def _keep_quiet() -> None:
    for module, path, otherwise in () if _quiet else _KEPT_QUIET:
        owner, name = import_module(module), path
        if "." in path:
            kind, name = path.split(".")
            owner = getattr(owner, kind)
        if hasattr(owner, name):
            setattr(owner, name, _unless_running(getattr(owner, name), otherwise))
            _quiet.append(path)


def _unless_running(original: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        in_notebook = os.getpid() in (*_registered, *_autograd)
        return (otherwise if in_notebook and not runtime.running() else original)(*args, **kwargs)

    return call


def _raise_log_level() -> None:
    """torch_tpu's own messages of level INFO, where it was imported before we could say so (LOG_LEVEL)."""
    folder = Path(sys.modules["torch_tpu"].__file__ or "").parent
    with contextlib.suppress(OSError, AttributeError):  # another build: its messages appear
        library = ctypes.CDLL(str(folder / "csrc/common/libxla_base.so"))
        getattr(library, _SET_LEVEL)(_WARNING)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Within it, these variables have these values."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        set_variables(before)


def _imported() -> Any:
    """torch_tpu's loader."""
    try:
        for module, names in PRIVATE.items():
            missing = [name for name in names if not hasattr(import_module(module), name)]
            if missing:
                raise _unfit(f"{module} has no {missing[0]}")
    except ImportError as error:
        raise _cannot_import(error) from error
    return sys.modules["torch_tpu._loader"]


def _hardware() -> Any:
    """torch_tpu's module that counts chips, by PCI: so it does not see the plugin, and says what is available."""
    return sys.modules["torch_tpu._internal.utils.hardware"]


def _one() -> int:
    return 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch_tpu prints and warns of when it starts ("Successfully renamed PrivateUse1 backend", ...)."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.filterwarnings("ignore", message=".*TcMalloc.*|.*tcmalloc.*")
        yield


def _cannot_import(error: ImportError) -> TpuMagicsError:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "torch_tpu"):
        return TpuMagicsError(
            f"{error.name} is not installed.",
            "Training needs TorchTPU.",
            f"Install it: {INSTALL} (Python 3.12 or later)",
        )
    return _unfit(str(error))


def _unfit(why: str) -> TpuMagicsError:
    return TpuMagicsError(
        "This torch_tpu cannot be used.",
        f"{why}. These versions were tested: {VERSIONS}.",
        "Install them, then restart the kernel: %pip install torch_tpu==0.2.0 torch==2.15.0",
    )
