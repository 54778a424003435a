"""Errors for a TensorFlow or a TPU that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from tpu_magics.errors import TpuMagicsError

_KERNEL = ("share", "jupyter", "kernels", "tpu-magics-tensorflow")  # the Makefile's, which `make lab` installs
_CHOOSE = 'Choose the kernel "Python 3 (TensorFlow)", which has it (Kernel > Change Kernel), and run all cells again.'
_INSTALL = 'Run %pip install "tpu-magics[tf]" (on a TPU VM: "tpu-magics[tf-tpu]"), then restart the kernel.'
_RESTART = "Restart the kernel and run %tpu_init first."


class _Problem(Protocol):
    @property
    def about(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def todo(self) -> str: ...
    @property
    def state(self) -> str: ...


class HostStatus(Protocol):
    """The attributes of tpu_magics.host.Host that are needed here; backends may not import host."""

    @property
    def device(self) -> str: ...
    @property
    def problems(self) -> Sequence[_Problem]: ...


def require_no_torch_xla() -> None:
    """Raise TpuMagicsError if torch_xla was imported in this process."""
    if "torch_xla" in sys.modules:
        # Seen with tensorflow-cpu 2.21 and torch_xla 2.9.0: imported in this order it works, in the other the process
        # aborts ("Option ... registered more than once"). Neither is reliable.
        raise TpuMagicsError(
            "TensorFlow and torch_xla are both in this kernel.",
            "Each has its own copy of XLA, and one process cannot hold both.",
            "Restart the kernel and run the TensorFlow cells without importing torch_xla.",
        )


def not_importable(error: ImportError) -> TpuMagicsError:
    """The error for a failed import of TensorFlow or Keras."""
    missing = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and missing in ("tensorflow", "keras"):
        name = "Keras" if missing == "keras" and find_spec("tensorflow") else "TensorFlow"
        todo = _CHOOSE if Path(sys.prefix, *_KERNEL).is_dir() else _INSTALL
        return TpuMagicsError(f"{name} is not installed.", "This notebook trains with TensorFlow.", todo)
    return TpuMagicsError("TensorFlow cannot be imported.", f"{type(error).__name__}: {error}", _RESTART)


def refuse_broken(host: HostStatus, about: tuple[str, ...]) -> None:
    """Raise TpuMagicsError for the first broken thing on the host that is `about` one of these."""
    for problem in host.problems:
        if problem.state == "broken" and problem.about in about:
            raise TpuMagicsError(problem.what, problem.why, problem.todo)


# (pattern in TensorFlow's or libtpu's message, what happened, what to do); full texts in tests/backends/tensorflow.
_TEXTS = (
    (
        "ConfigureDistributedTPU",
        "The installed TensorFlow has no kernels for a TPU.",
        'Run !pip uninstall -y tensorflow tensorflow-cpu && pip install "tpu-magics[tf-tpu]", then restart the kernel.',
    ),
    (
        "already in use by process",
        "Another process is using the TPU.",
        "Stop that process (%tpu_init shows it) or shut down the other notebook's kernel, then restart this kernel.",
    ),
    (
        "libtpu_lockfile",
        "A process of another account left a lock file behind.",
        "Run !sudo rm /tmp/libtpu_lockfile, then restart the kernel.",
    ),
    (
        "TPUs not found in the cluster",
        "TensorFlow did not find the TPU.",
        "Choose a runtime with a TPU, check the table of %tpu_init, then restart the kernel.",
    ),
)


def no_tpu(error: Exception) -> TpuMagicsError:
    """The error for this host's TPU that could not be initialised."""
    text = str(error)
    for sign, what, todo in _TEXTS:
        if sign in text:
            return TpuMagicsError(what, _first_line(error), todo)
    return TpuMagicsError("TensorFlow could not initialise this host's TPU.", _first_line(error), _RESTART)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
