"""Enable XLA's dumps, once per process, and prove that they work with one small compile."""

# Seen in TensorFlow 2.21: XLA reads XLA_FLAGS when it first compiles, also where TensorFlow was imported before, and
# never again. TensorFlow itself counts traces, which are not compiles (a relaxed trace compiles once for each shape);
# the dump is the only source of compiles in a process that has imported TensorFlow.

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.runs import locked

FLAGS = "--xla_dump_hlo_as_text --xla_dump_disable_metadata"
NAMED = "before_optimizations.txt"
_VARIABLE = "XLA_FLAGS"
_TEXT = "--xla_dump_hlo_as_text"
_UNREAD = (
    "XLA_FLAGS sends XLA's dump to {folder}, but XLA wrote no HLO text there. Add --xla_dump_hlo_as_text to "
    "XLA_FLAGS, remove flags that select modules, and restart the kernel"
)
_TOO_LATE = (
    "XLA had already compiled before this run, and it reads XLA_FLAGS only once. Restart the kernel and run "
    "%tpu_init before the first compile"
)
_NONE_ON_TPU = "the TPU compiler wrote no dump to a folder on this host"


@dataclass(frozen=True)
class DumpSetup:
    """`folder`: where XLA dumps; None if it does not, with the `reason`. `theirs`: the user's XLA_FLAGS had named the
    folder, so its files are kept."""

    folder: Path | None
    reason: str = ""
    theirs: bool = False


_setups: list[DumpSetup] = []


def enable(device: str) -> DumpSetup:
    """Make XLA dump from now on; later calls return the same. `device`: "CPU" or "TPU"."""
    if not _setups:
        _setups.append(_enable(device))
    return _setups[0]


def _enable(device: str) -> DumpSetup:
    if "xla_dump_to" in os.environ.get(_VARIABLE, ""):
        return _user_folder(os.environ[_VARIABLE], device)
    try:
        folder = locked.make()
    except OSError as error:
        return DumpSetup(None, f"no temporary folder could be created: {error.strerror or error}")
    dumps = folder.path / "dumps"
    dumps.mkdir(mode=0o700)
    try:
        with _flags(f'--xla_dump_to="{dumps}" {FLAGS}'):
            _compile(device)
    except BaseException as error:
        folder.remove()
        if not isinstance(error, Exception):
            raise
        return DumpSetup(None, f"a first compile failed ({type(error).__name__}: {error})"[:300])
    if not any(path.name.endswith(NAMED) for path in dumps.iterdir()):
        folder.remove()
        return DumpSetup(None, _TOO_LATE if device == "CPU" else _NONE_ON_TPU)
    atexit.register(_remove, folder, os.getpid())
    return DumpSetup(dumps)


def _user_folder(flags: str, device: str) -> DumpSetup:
    """The folder of the user's XLA_FLAGS, if a first compile shows that it can be read."""
    folder = _folder_in(flags)
    if folder is None:
        return DumpSetup(None, _UNREAD.format(folder="no folder"))
    before = _texts(folder)
    try:
        with _flags(_TEXT):  # without it there is no text if XLA_FLAGS asks for protos
            _compile(device)
    except Exception as error:
        return DumpSetup(None, f"a first compile failed ({type(error).__name__}: {error})"[:300])
    return (
        DumpSetup(folder, theirs=True) if _texts(folder) != before else DumpSetup(None, _UNREAD.format(folder=folder))
    )


def _folder_in(flags: str) -> Path | None:
    try:
        found = [one.partition("=")[2] for one in shlex.split(flags) if one.startswith("--xla_dump_to=")]
    except ValueError:  # an unclosed quotation
        found = []
    return Path(found[-1]) if found and found[-1] not in ("", "-", "sponge") else None


def _texts(folder: Path) -> dict[str, int]:
    """The modules' texts in the folder, with the time of each."""
    if not folder.is_dir():
        return {}
    return {one.name: one.stat().st_mtime_ns for one in folder.iterdir() if one.name.endswith(NAMED)}


def _remove(folder: locked.LockedFolder, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        folder.remove()


@contextmanager
def _flags(ours: str) -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = f"{before or ''} {ours}".strip()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before


def _compile(device: str) -> None:
    """A small compile on the device that will train."""
    import tensorflow as tf

    def canary(value: object) -> object:
        return tf.add(value, 1.0)

    found = tf.config.list_logical_devices(device)
    with tf.init_scope(), tf.device(found[0].name if found else None):
        tf.function(canary, jit_compile=True, autograph=False)(tf.zeros(3))
