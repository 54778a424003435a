"""Stands for Google Cloud Storage, which tests do not reach: what TensorFlow's file system for gs:// raised when a file
was written there.

Texts as they were recorded: "unreachable" here, with TensorFlow 2.21 on a machine without a network; the others from
reports (github.com: EleutherAI/gpt-neo#160, fenwickslab/fenwicks#4, googlecolab/colabtools#1177,
nyu-dl/dl4marco-bert#19, waymo-research/waymax#5), with other names of accounts and buckets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf


def _answer(code: int, message: str) -> str:
    body = f'{{\n  "error": {{\n    "code": {code},\n    "message": "{message}"\n  }}\n}}\n'
    return (
        f"Error executing an HTTP request: HTTP response code {code} with body '{body}'\n"
        "\t when initiating an upload to gs://bucket/model"
    )


_ANONYMOUS = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
_DENIED = "person@example.com does not have storage.objects.create access to bucket/model."
RECORDED: dict[str, Exception] = {
    "anonymous": tf.errors.PermissionDeniedError(
        None,
        None,
        _answer(401, _ANONYMOUS),
    ),
    "no credentials": tf.errors.AbortedError(
        None,
        None,
        "All attempts to get a Google authentication bearer token failed, returning an empty token. Retrieving token "
        'from files failed with "NOT_FOUND: Could not locate the credentials file.". Retrieving token from GCE failed '
        "with \"FAILED_PRECONDITION: Error executing an HTTP request: libcurl code 6 meaning 'Couldn't resolve host "
        "name', error details: Could not resolve host: metadata.google.internal\".",
    ),
    "denied": tf.errors.PermissionDeniedError(None, None, _answer(403, _DENIED)),
    "no bucket": tf.errors.NotFoundError(None, None, _answer(404, "The specified bucket does not exist.")),
    "unreachable": tf.errors.FailedPreconditionError(
        None,
        None,
        "Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve hostname', error details: Could "
        "not resolve host: www.googleapis.com\n\t when initiating an upload to gs://bucket/model",
    ),
    "no file system": tf.errors.UnimplementedError(
        None, None, "File system scheme 'gs' not implemented (file: 'gs://bucket/model')"
    ),
}


def refusing(name: str) -> Callable[[str], None]:
    """Writing as that bucket answers it."""

    def attempt(path: str) -> None:
        assert path.startswith("gs://bucket/")
        raise RECORDED[name]

    return attempt


def silent(path: str) -> None:
    """A bucket that does not answer for a while."""
    time.sleep(3)
