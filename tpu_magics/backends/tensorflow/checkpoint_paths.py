"""Whether a checkpoint path can be written, tested before training starts."""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import Placed, Problem
from tpu_magics.backends.tensorflow.checkpoint_names import OLD, USE_SAVE, ending, old_name
from tpu_magics.backends.tensorflow.cloud_storage import PATIENCE, bucket_problem
from tpu_magics.errors import TpuMagicsError

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_local(path: str) -> bool:
    """Whether `path` is on this machine."""
    return not _SCHEME.match(path)


def normal(path: str | Path) -> str:
    """`path` as text, with ~ expanded. Raises TpuMagicsError for a name that nothing can be saved under."""
    text = located(path)
    if not str(path).strip():
        raise TpuMagicsError("The path is empty.", "", 'Give a path, such as "model.keras".')
    if not ending(text) and text.lower().endswith(OLD):
        raise old_name(text)
    return text


def located(path: str | Path) -> str:
    """The same for an existing path, without a check of its name."""
    text = str(path)
    return str(Path(text).expanduser()) if is_local(text) else text.rstrip("/")


# -- trying a path --------------------------------------------------------------------------------------------------


def writable(
    path: str | Path,
    on_colab: bool = False,
    *,
    needed: int = 0,
    remote_tpu: bool = False,
    attempt: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> Problem | None:
    """Why nothing can be written at `path`; None if it can. A small file is written next to it and removed.

    Args:
        path: of a file (".keras", ".weights.h5") or of a folder of checkpoints, local or "gs://...".
        on_colab: credentials come from google.colab.
        needed: bytes.
        remote_tpu: the TPU's host is another machine, whose own account writes to the bucket.
        attempt: writes and removes a file at a given path; None: TensorFlow does it.
        patience: seconds to wait for a bucket.
    """
    try:
        text = normal(path)
    except TpuMagicsError as error:
        return Problem(error.what, error.why, error.todo)
    if is_local(text):
        return _local_problem(Path(text), bool(ending(text)), needed)
    folder = text.rpartition("/")[0] if ending(text) else text
    return bucket_problem(text, folder, on_colab=on_colab, remote_tpu=remote_tpu, attempt=attempt, patience=patience)


def _local_problem(path: Path, is_file: bool, needed: int) -> Problem | None:
    folder = path.absolute().parent
    checks: Sequence[tuple[bool, str, str]] = (
        (
            is_file and path.is_dir(),
            "it is a directory.",
            "Give another name, or remove the directory.",
        ),
        (
            not is_file and path.exists() and not path.is_dir(),
            "a file with this name exists, and a folder is needed.",
            "Give another name, or the ending .keras or .weights.h5.",
        ),
        (folder.exists() and not folder.is_dir(), f"{folder} is not a directory.", "Give a path in a directory."),
        (
            not folder.exists(),
            f"the directory {folder} does not exist.",
            f"Create it: Path('{folder}').mkdir(parents=True)",
        ),
    )
    for wrong, what, todo in checks:
        if wrong:
            return Problem(f"Cannot save to {path}: {what}", "", todo)
    return _unwritten(path, path if path.is_dir() and not is_file else folder, needed)


def _unwritten(path: Path, folder: Path, needed: int) -> Problem | None:
    trial = folder / f".tpu_magics-{uuid.uuid4().hex[:12]}"
    try:
        trial.write_bytes(b"tpu_magics")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Problem(
            f"Cannot save to {path}.",
            f"Writing to {folder} failed: {error.strerror or error}.",
            "Give a path that you can write to, on a disk with free space.",
        )
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    if free < needed:
        return Problem(
            f"Not enough disk space for {path}.",
            f"It needs about {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free. The earlier "
            "checkpoint is kept until the new one is complete.",
            "Free some space, or give a path on another disk.",
        )
    return None


# -- paths that are known before training ---------------------------------------------------------------------------


Destination = tuple[str, bool]  # a path, and whether TensorFlow ops (and not Python) write to it


def path_problems(
    items: Sequence[tuple[str, Any]], placed: Placed, on_colab: bool = False, known: Collection[Destination] = ()
) -> Sequence[Problem]:
    """Problems with the paths that callbacks and managers among `items` (also in lists) will write to. `known`: paths
    that were already tested."""
    found: list[Problem] = []
    remote = placed.kind == "tpu-remote"
    for path, by_tensorflow in dict.fromkeys(destinations([value for _, value in items])):
        if (path, by_tensorflow) in known:
            continue
        problem = writable(existing(path) if is_local(path) else path, on_colab, remote_tpu=remote)
        if problem is None and remote and by_tensorflow and is_local(path):
            problem = Problem(
                f"TensorFlow writes to {path} on the TPU's host, which does not have this machine's files.",
                "\"File system scheme '[local]' not implemented\".",
                f'Use a path in a bucket ("gs://bucket/..."), or {USE_SAVE}.',
            )
        found += [problem] if problem else []
    return tuple(dict.fromkeys(found))


def destinations(values: Sequence[Any]) -> Iterator[Destination]:
    """Paths that callbacks and managers among `values` will write to. A name that Keras fills in is left out."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from destinations(value)
        elif isinstance(value, keras.callbacks.CallbackList):
            yield from destinations(value.callbacks)
        elif isinstance(value, keras.callbacks.ModelCheckpoint):
            yield re.sub(r"/?[^/]*\{.*$", "", str(value.filepath)) or ".", False
        elif isinstance(value, keras.callbacks.BackupAndRestore):
            yield str(value.backup_dir), False
        elif isinstance(value, tf.train.CheckpointManager):
            options = getattr(value, "_checkpoint_options", None)  # TensorFlow 2.21; its device may be the local one
            yield str(value.directory), getattr(options, "experimental_io_device", None) is None


def existing(path: str) -> str:
    """The nearest existing folder: callbacks and managers create missing ones, so this one has to be writable."""
    one = Path(path).expanduser().absolute()
    while not one.exists() and one != one.parent:
        one = one.parent
    return str(one) if one.is_dir() or ending(str(one)) else str(one.parent)
