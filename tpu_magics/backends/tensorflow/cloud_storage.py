"""Whether a gs:// bucket can be written: a small file is written and removed, with a time limit."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable

import tensorflow as tf

from tpu_magics.backends.base import Problem

PATIENCE = 20.0  # seconds for a bucket to answer; TensorFlow itself retries for minutes


def bucket_problem(
    path: str,
    folder: str,
    *,
    on_colab: bool = False,
    remote_tpu: bool = False,
    attempt: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> Problem | None:
    """Why nothing can be written at `path`; None if it can.

    Args:
        path: "gs://bucket/...", for the message.
        folder: where the test file goes.
        on_colab: credentials come from google.colab.
        remote_tpu: the TPU's host is another machine, whose own account writes.
        attempt: writes and removes a file at a given path; None: TensorFlow does it.
        patience: seconds to wait for an answer.
    """
    beside = f"{folder}/.tpu_magics-{uuid.uuid4().hex[:12]}"
    error, answered = _within(patience, lambda: (attempt or _try)(beside))
    if answered and error is None:
        return None
    text = str(error) if answered else f"no answer within {patience:g} seconds"
    return _refused(path, text, on_colab, remote_tpu)


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


# -- refusals --------------------------------------------------------------------------------------------------------

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


def _refused(path: str, text: str, on_colab: bool, remote_tpu: bool) -> Problem:
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
    also = (
        " The TPU's service account (service-NUMBER@cloud-tpu.iam.gserviceaccount.com) needs the role as "
        "well, because it writes the files."
        if remote_tpu
        else ""
    )
    return Problem(f"Cannot save to {path}: {what.format(**words)}.", _short(text), todo.format(**words) + also)


def _short(text: str) -> str:
    message = re.search(r'"message": "([^"]+)"', text)
    first = message[1] if message else " ".join(text.split())
    return first if len(first) <= 300 else f"{first[:300]}..."
