"""The machine of a measurement, in words: cores, memory, versions, load."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tpu_magics import __version__
from tpu_magics.host.memory import cpu_count, host_memory
from tpu_magics.host.versions import installed

VERSIONS = ("ipython", "torch", "torch_xla", "accelerate", "transformers")


def describe() -> str:
    """Two sentences: the machine and the versions."""
    root = Path("/")
    parts = [_cores(cpu_count(root)), _memory(host_memory(root).total), f"{platform.system()} on {platform.machine()}"]
    found = installed()
    versions = [f"Python {platform.python_version()}", f"tpu_magics {__version__}"]
    versions += [f"{name} {found[name]}" for name in VERSIONS if found.get(name)]
    return f"Machine: {', '.join(parts)}; load {load():.1f} at the start. Versions: {', '.join(versions)}."


def load() -> float:
    """Processes that wanted a core in the last minute: above the benchmark's own one, others were at work as well."""
    return os.getloadavg()[0]


def _cores(count: int | None) -> str:
    return f"{count} cores" if count is not None else "cores not available"


def _memory(count: int | None) -> str:
    return f"{count / 1e9:.0f} GB of memory" if count else "memory not available"
