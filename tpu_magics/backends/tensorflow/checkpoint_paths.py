"""Names and paths of checkpoints: the endings that Keras 3 accepts, its errors for old ones explained, and whether a
path or bucket can be written, tested before training starts."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.base import TrainingProblem
from tpu_magics.errors import TpuMagicsError

KERAS, WEIGHTS = ".keras", ".weights.h5"
OLD = (".h5", ".hdf5", ".tf", ".ckpt")
_RECEIVED = re.compile(r"[Rr]eceived: filepath=(\S+?)\.?(?:\s|$)|not supported: filepath=(\S+?)\.?\s")


def ending(path: str) -> str:
    """ ".keras", ".weights.h5", or "" for a folder of tf.train.Checkpoint files."""
    return next((one for one in (WEIGHTS, KERAS) if path.endswith(one)), "")


def old_name(path: str) -> TpuMagicsError:
    """The error for a file name that only Keras 2 accepts."""
    stem = re.sub(r"(?:\.weights)?\.(?:h5|hdf5|tf|ckpt|keras)$", "", path)
    return TpuMagicsError(
        f"Keras 3 does not accept the file name {path}.",
        "The ending sets the file format: .weights.h5 for weights, .keras for a whole model.",
        f'Use "{stem}.weights.h5" for the weights and the optimizer (model.save_weights), "{stem}.keras" for the '
        f'whole model (model.save), or "{stem}" for a folder of tf.train.Checkpoint files (tpu_magics.tf.save '
        "only).",
    )


def name_refused(error: BaseException) -> TpuMagicsError | None:
    """Keras 3's error about a file name, explained; None for any other error. The texts are those of Keras 3.15
    (saving/saving_api.py, callbacks/model_checkpoint.py)."""
    text = str(error)
    received = _RECEIVED.search(text)
    path = next((one for one in received.groups() if one), "") if received else "the path"
    for signs, explain in _NAMES:
        if all(sign in text for sign in signs):
            return explain(path)
    return None


def _load_error(path: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"Keras 3 cannot load {path}.",
        "It loads .keras, .weights.h5 and old .h5 files, but no folders of a SavedModel or of tf.train.Checkpoint.",
        f'For a tf.train.Checkpoint: tpu_magics.tf.load(model, "{path}"). For a SavedModel (inference only): '
        f'keras.layers.TFSMLayer("{path}", call_endpoint="serving_default").',
    )


def _save_format(_: str) -> TpuMagicsError:
    return TpuMagicsError(
        "Keras 3 does not accept the argument save_format.",
        "The ending of the name sets the file format.",
        'Remove it and use model.save("model.keras") or model.save_weights("model.weights.h5").',
    )


_NAMES: tuple[tuple[tuple[str, ...], Callable[[str], TpuMagicsError]], ...] = (
    (("The filename must end in `.weights.h5`",), old_name),
    (("Invalid filepath extension for saving",), old_name),
    (("the filepath provided must end in `.weights.h5`",), old_name),
    (("The filepath provided must end in `.keras`",), old_name),
    (("`save_format` argument is deprecated",), _save_format),
    (("File format not supported: filepath=",), _load_error),
)


PATIENCE = 20.0  # seconds for a bucket to answer; TensorFlow itself retries for minutes
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_local(path: str) -> bool:
    """Whether `path` is on this machine."""
    return not _SCHEME.match(path)


def normalise(path: str | Path) -> str:
    """`path` as text, with ~ expanded. Raises TpuMagicsError for a name that nothing can be saved under."""
    text = expand(path)
    if not str(path).strip():
        raise TpuMagicsError("The path is empty.", "", 'Give a path, such as "model.keras".')
    if not ending(text) and text.lower().endswith(OLD):
        raise old_name(text)
    return text


def expand(path: str | Path) -> str:
    """Expand an existing path, without a check of its name."""
    text = str(path)
    return str(Path(text).expanduser()) if is_local(text) else text.rstrip("/")


# -- testing a path ---------------------------------------------------------------------------------------------------


def writable(
    path: str | Path,
    on_colab: bool = False,
    *,
    needed: int = 0,
    attempt: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> TrainingProblem | None:
    """Why nothing can be written at `path`; None if it can. A small file is written next to it and removed.

    Args:
        path: of a file (".keras", ".weights.h5") or of a folder of checkpoints, local or "gs://...".
        on_colab: credentials come from google.colab.
        needed: bytes.
        attempt: writes and removes a file at a given path; None: TensorFlow does it.
        patience: seconds to wait for a bucket.
    """
    try:
        text = normalise(path)
    except TpuMagicsError as error:
        return TrainingProblem(error.what, error.why, error.todo)
    if is_local(text):
        return _local_problem(Path(text), bool(ending(text)), needed)
    folder = text.rpartition("/")[0] if ending(text) else text
    return bucket_problem(text, folder, on_colab=on_colab, attempt=attempt, patience=patience)


def _local_problem(path: Path, is_file: bool, needed: int) -> TrainingProblem | None:
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
            return TrainingProblem(f"Cannot save to {path}: {what}", "", todo)
    return _write_problem(path, path if path.is_dir() and not is_file else folder, needed)


def _write_problem(path: Path, folder: Path, needed: int) -> TrainingProblem | None:
    trial = folder / f".tpu_magics-{uuid.uuid4().hex[:12]}"
    try:
        trial.write_bytes(b"tpu_magics")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return TrainingProblem(
            f"Cannot save to {path}.",
            f"Writing to {folder} failed: {error.strerror or error}.",
            "Give a path that you can write to, on a disk with free space.",
        )
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    if free < needed:
        return TrainingProblem(
            f"Not enough disk space for {path}.",
            f"It needs about {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free. The earlier "
            "checkpoint is kept until the new one is complete.",
            "Free some space, or give a path on another disk.",
        )
    return None


# -- paths that are known before training -----------------------------------------------------------------------------


def path_problems(
    items: Sequence[tuple[str, Any]], on_colab: bool = False, known: Collection[str] = ()
) -> Sequence[TrainingProblem]:
    """Problems with the paths that callbacks and managers among `items` (also in lists) will write to. `known`: paths
    that were already tested."""
    found: list[TrainingProblem] = []
    for path in dict.fromkeys(destinations([value for _, value in items])):
        if path in known:
            continue
        problem = writable(nearest_folder(path) if is_local(path) else path, on_colab)
        found += [problem] if problem else []
    return tuple(dict.fromkeys(found))


def destinations(values: Sequence[Any]) -> Iterator[str]:
    """Paths that callbacks and managers among `values` will write to. A name that Keras fills in is left out."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from destinations(value)
        elif isinstance(value, keras.callbacks.CallbackList):
            yield from destinations(value.callbacks)
        elif isinstance(value, keras.callbacks.ModelCheckpoint):
            yield re.sub(r"/?[^/]*\{.*$", "", str(value.filepath)) or "."
        elif isinstance(value, keras.callbacks.BackupAndRestore):
            yield str(value.backup_dir)
        elif isinstance(value, tf.train.CheckpointManager):
            yield str(value.directory)


def nearest_folder(path: str) -> str:
    """The nearest existing folder: callbacks and managers create missing ones, so this one has to be writable."""
    one = Path(path).expanduser().absolute()
    while not one.exists() and one != one.parent:
        one = one.parent
    return str(one) if one.is_dir() or ending(str(one)) else str(one.parent)


# -- buckets ----------------------------------------------------------------------------------------------------------


def bucket_problem(
    path: str,
    folder: str,
    *,
    on_colab: bool = False,
    attempt: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> TrainingProblem | None:
    """Why nothing can be written at `path`; None if it can.

    Args:
        path: "gs://bucket/...", for the message.
        folder: where the test file goes.
        on_colab: credentials come from google.colab.
        attempt: writes and removes a file at a given path; None: TensorFlow does it.
        patience: seconds to wait for an answer.
    """
    beside = f"{folder}/.tpu_magics-{uuid.uuid4().hex[:12]}"
    error, answered = _within(patience, lambda: (attempt or _try)(beside))
    if answered and error is None:
        return None
    text = str(error) if answered else f"no answer within {patience:g} seconds"
    return _refused(path, text, on_colab)


def _try(path: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("tpu_magics")
    tf.io.gfile.remove(path)


def _within(seconds: float, do: Callable[[], None]) -> tuple[BaseException | None, bool]:
    """(what it raised, whether it ended in time). TensorFlow's calls cannot be stopped: their thread keeps running."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="tpu_magics-bucket", daemon=True)
    thread.start()
    thread.join(seconds)
    return (raised[0] if raised else None), not thread.is_alive()


# -- errors of buckets ------------------------------------------------------------------------------------------------

_COLAB = (
    "from google.colab import auth; auth.authenticate_user(), then !gcloud config set project PROJECT, and run this "
    "cell again"
)
_ELSEWHERE = (
    "gcloud auth application-default login, then gcloud config set project PROJECT (or set "
    "GOOGLE_APPLICATION_CREDENTIALS to the path of a service account's key), and run this cell again"
)
# (patterns, what is wrong, what to do; {login}, {bucket} and {account} are filled in). The messages are those of
# TensorFlow's file system for gs:// (tsl/platform/cloud: google_auth_provider.cc, gcs_file_system.cc).
_REFUSALS = (
    (
        ("scheme 'gs' not implemented",),
        "this TensorFlow has no file system for gs://",
        "pip install tensorflow-io-gcs-filesystem, or save to a local path and copy that with gcloud storage cp -r.",
    ),
    (
        ("code 401", "Anonymous caller", "empty token", "Could not locate the credentials", "Invalid Credentials"),
        "you are not logged in to Google Cloud",
        "Log in: {login}.",
    ),
    (
        ("code 404", "bucket does not exist", "notFound"),
        "there is no bucket gs://{bucket}",
        "Correct the name, or create the bucket: gcloud storage buckets create gs://{bucket}. With another "
        "account: {login}.",
    ),
    (
        ("code 403", "does not have storage.", "forbidden", "AccessDenied"),
        "{account} has no permission to write there",
        "Grant it: gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=MEMBER "
        "--role=roles/storage.objectAdmin. With another account: {login}.",
    ),
    (
        ("libcurl", "no answer within", "resolve host", "Callback aborted", "retry attempts failed"),
        "Google Cloud Storage does not answer",
        "Check that this machine can reach storage.googleapis.com. If you are not logged in: {login}.",
    ),
)
_ACCOUNT = re.compile(r"([\w.+-]+@[\w.-]+) does not have")


def _refused(path: str, text: str, on_colab: bool) -> TrainingProblem:
    account = _ACCOUNT.search(text)
    words = {
        "login": _COLAB if on_colab else _ELSEWHERE,
        "bucket": path.split("/")[2],
        "account": account[1] if account else "the account in use",
        "path": path,
    }
    known = (one for one in _REFUSALS if any(sign.lower() in text.lower() for sign in one[0]))
    _, what, todo = next(
        known, ((), "the write was refused", "Read the message above. If you are not logged in: {login}.")
    )
    return TrainingProblem(f"Cannot save to {path}: {what.format(**words)}.", _short(text), todo.format(**words))


def _short(text: str) -> str:
    message = re.search(r'"message": "([^"]+)"', text)
    first = message[1] if message else " ".join(text.split())
    return first if len(first) <= 300 else f"{first[:300]}..."
