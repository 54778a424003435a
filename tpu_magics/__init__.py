"""tpu_magics: train on a TPU from a notebook.

`%load_ext tpu_magics` registers the magics. The functions do the same from Python code; each is
imported when it is first used, so that loading the extension is quick and imports no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tpu_magics import check as check
    from tpu_magics import padding as padding
    from tpu_magics import tf as tf
    from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
    from tpu_magics.launch.results import TrainResult
    from tpu_magics.launch.resume.loops import resumable
    from tpu_magics.magics.doctor import doctor
    from tpu_magics.magics.init import init
    from tpu_magics.magics.pad import pad
    from tpu_magics.magics.pod import pod
    from tpu_magics.magics.preflight import preflight
    from tpu_magics.magics.runs_commands import show_run
    from tpu_magics.magics.train import train
    from tpu_magics.panel.tensorboard import to_tensorboard
    from tpu_magics.runs.meter import log
    from tpu_magics.runs.reader import find_run, list_runs

_WHERE = {
    "train": ("tpu_magics.magics.train", "train"),
    "init": ("tpu_magics.magics.init", "init"),
    "resumable": ("tpu_magics.launch.resume.loops", "resumable"),
    "log": ("tpu_magics.runs.meter", "log"),
    "find_run": ("tpu_magics.runs.reader", "find_run"),
    "list_runs": ("tpu_magics.runs.reader", "list_runs"),
    "show_run": ("tpu_magics.magics.runs_commands", "show_run"),
    "pad": ("tpu_magics.magics.pad", "pad"),
    "doctor": ("tpu_magics.magics.doctor", "doctor"),
    "pod": ("tpu_magics.magics.pod", "pod"),
    "preflight": ("tpu_magics.magics.preflight", "preflight"),
    "to_tensorboard": ("tpu_magics.panel.tensorboard", "to_tensorboard"),
    "TrainResult": ("tpu_magics.launch.results", "TrainResult"),
    "TpuMagicsError": ("tpu_magics.errors", "TpuMagicsError"),
    "TrainingFailed": ("tpu_magics.errors", "TrainingFailed"),
    "TrainingInterrupted": ("tpu_magics.errors", "TrainingInterrupted"),
}

__all__ = [
    "TpuMagicsError",
    "TrainResult",
    "TrainingFailed",
    "TrainingInterrupted",
    "doctor",
    "find_run",
    "init",
    "list_runs",
    "log",
    "pad",
    "pod",
    "preflight",
    "resumable",
    "show_run",
    "to_tensorboard",
    "train",
]


if not TYPE_CHECKING:  # else every name would be one of this module's

    def __getattr__(name: str) -> Any:
        if name in ("padding", "check", "tf"):  # the rooms that people's own code uses by their names
            return import_module(f"tpu_magics.{name}")
        if name not in _WHERE:
            raise AttributeError(f"module 'tpu_magics' has no attribute {name!r}")
        module, attribute = _WHERE[name]
        return getattr(import_module(module), attribute)


def _preflight() -> Any:
    """The function; once something of the room of the same name is imported, `tpu_magics.preflight` is the room, which
    calls this."""
    return getattr(import_module("tpu_magics.magics.preflight"), "preflight")  # noqa: B009


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Called by `jupyter labextension develop`: where a checkout's bundle of the JupyterLab extension lies."""
    return [{"src": "labextension", "dest": "tpu-magics"}]


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext tpu_magics`."""
    from tpu_magics.magics.shell import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by `%unload_ext tpu_magics`."""
    from tpu_magics.magics.shell import unload

    unload(shell)
