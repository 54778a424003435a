"""TensorFlow and torch_xla in one process."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

from tpu_magics.errors import TpuMagicsError

# Seen with torch_xla 2.9.0 and tensorflow 2.21.0.
_ABORTS = (
    "TensorFlow is imported in this process. Importing torch_xla after it aborts the kernel (LLVM ERROR: inconsistency "
    "in registered CommandLine options)."
)
_RESTART = "Restart the kernel, and use only one of them in a notebook."


class _NoTorchXla:
    """Makes `import torch_xla` fail once TensorFlow is imported. (On sys.meta_path. It finds a spec and then fails to
    import, as accelerate and transformers expect of a torch_xla that does not work.)"""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != "torch_xla" or "tensorflow" not in sys.modules:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        raise ImportError(f"{_ABORTS} {_RESTART}", name=spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Never reached."""


def require_alone() -> None:
    """Raise TpuMagicsError if torch_xla cannot be imported anymore, before the import aborts the process."""
    if "tensorflow" in sys.modules and "torch_xla" not in sys.modules:
        raise TpuMagicsError("PyTorch/XLA can no longer be used in this notebook.", _ABORTS, _RESTART)


def forbid_torch_xla() -> None:
    """Make `import torch_xla` raise ImportError where it would abort the process (idempotent)."""
    if not any(_is_ours(one) for one in sys.meta_path):
        sys.meta_path.insert(0, _NoTorchXla())


def allow_torch_xla() -> None:
    """Undo `forbid_torch_xla`."""
    sys.meta_path[:] = [one for one in sys.meta_path if not _is_ours(one)]


def _is_ours(finder: Any) -> bool:
    """By name: after a reload of this module the class is a new object."""
    kind = type(finder)
    return (kind.__module__, kind.__qualname__) == (_NoTorchXla.__module__, _NoTorchXla.__qualname__)
