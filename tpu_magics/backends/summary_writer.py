"""A writer of TensorBoard's event files: tensorboardX's or PyTorch's, whichever is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tpu_magics.errors import TpuMagicsError

QUEUE = 1_000  # events that wait for the writer's thread: with fewer, whoever writes waits for it
_WITHOUT_TENSORFLOW = "tensorboard.compat.notf"


class SummaryWriter(Protocol):
    """What both writers have. Times in unix seconds."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, walltime: float) -> object: ...

    def add_text(self, tag: str, text_string: str, global_step: int, walltime: float) -> object: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def require_writer() -> None:
    """Raise TpuMagicsError where none is installed. Imports neither."""
    if not (_is_installed("tensorboardX") or (_is_installed("torch") and _is_installed("tensorboard"))):
        raise TpuMagicsError(
            "Nothing here writes TensorBoard's event files.",
            "Neither tensorboardX nor tensorboard (with PyTorch) is installed.",
            "Install one of them: %pip install tensorboardX, or %pip install tensorboard.",
        )


def _is_installed(name: str) -> bool:
    if sys.modules.get(name) is not None:
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def open_writer(folder: Path) -> SummaryWriter:
    """A writer of event files in `folder`, which it makes. tensorboardX comes first: it imports no framework."""
    require_writer()
    writer: SummaryWriter
    if _is_installed("tensorboardX"):
        from tensorboardX import SummaryWriter as LightWriter

        writer = LightWriter(str(folder), max_queue=QUEUE, flush_secs=1)
    else:
        with _without_tensorflow():
            from torch.utils.tensorboard import SummaryWriter as TorchWriter

            writer = TorchWriter(str(folder), max_queue=QUEUE, flush_secs=1)
    return writer


@contextmanager
def _without_tensorflow() -> Iterator[None]:
    """tensorboard imports TensorFlow for its file access where it is installed: seconds, and a library that does not go
    into one process with torch_xla. It takes its own stub where a module of this name is there (tensorboard 2.20,
    compat/__init__.py)."""
    if "tensorflow" in sys.modules or _WITHOUT_TENSORFLOW in sys.modules:
        yield
        return
    sys.modules[_WITHOUT_TENSORFLOW] = ModuleType(_WITHOUT_TENSORFLOW)
    try:
        yield
    finally:
        sys.modules.pop(_WITHOUT_TENSORFLOW, None)
