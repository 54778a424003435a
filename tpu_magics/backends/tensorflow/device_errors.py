"""Errors about devices, memory and the strategy's scope explained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tpu_magics.backends.base import TPU_LOCAL
from tpu_magics.backends.tensorflow.availability import no_tpu
from tpu_magics.backends.tensorflow.located_error import LocatedError
from tpu_magics.errors import TpuMagicsError

# -- a TPU that TensorFlow cannot use ---------------------------------------------------------------------------------

_NO_TPU = re.compile(r"ConfigureDistributedTPU|TPUs not found in the cluster|already in use by process|libtpu_lockfile")


def _no_tpu(error: LocatedError) -> TpuMagicsError | None:
    if not _NO_TPU.search(error.text) or not isinstance(error.error, Exception):
        return None
    found = no_tpu(error.error, TPU_LOCAL)
    return TpuMagicsError(found.what, found.why, found.todo, error.details())


# "No registered 'PyFunc' OpKernel for 'CPU' devices", of a remote TPU's host (facts.md; python/ops/script_ops.py keeps
# the functions in the process that has made them).
_PYTHON = re.compile(r"No registered '(?:Eager)?PyFunc(?:Stateless)?' OpKernel for '?CPU|pyfunc_\d+ not found")


def _no_python_on_host(error: LocatedError) -> TpuMagicsError | None:
    found = _PYTHON.search(error.text)
    if not found:
        return None
    return error.explain(
        "The input pipeline calls Python, but the TPU's host has no Python",
        "A remote TPU runs the pipeline on its own host: from_generator, tf.py_function, tf.numpy_function and "
        "to_tf_dataset of a Hugging Face dataset all call back into this notebook.",
        "Load the data into memory first (tpu_magics.tf.in_memory(dataset, batch_size=...)), or write TFRecord "
        'files to a bucket and read them with tf.data.TFRecordDataset("gs://...").',
        [error.quote(found)],
    )


# -- variables on another device --------------------------------------------------------------------------------------

_RESOURCE = re.compile(r"Trying to access resource (\S+).*? located in device (\S+) from device (\S+)")
_REPLICA = re.compile(r"/replica_\d+")
_DEVICE = re.compile(r"device:(\w+:\d+)")


def _other_device(error: LocatedError) -> TpuMagicsError | None:
    found = _RESOURCE.search(error.text)
    if not found:
        return None
    name, there, here = found.groups()
    made = f", created at {error.made}," if error.made else ""
    what = f"A step compiled for {_short(here)} uses {name}{made} on {_short(there)}"
    rule = "XLA compiles a program for one device, and all its variables must be on that device."
    if _REPLICA.search(name):
        return error.explain(
            what,
            f"{rule} Each replica has its own copy, and jit_compile=True cannot compile a step of several replicas.",
            "Remove jit_compile: on a TPU the strategy compiles what it runs. On this machine, use XLA with "
            "one replica.",
        )
    return error.explain(
        what,
        rule,
        "Create the variable without tf.device, inside the strategy's scope, or use it outside the compiled step.",
    )


def _short(device: str) -> str:
    found = _DEVICE.search(device)
    return found[1] if found else device


# -- memory -----------------------------------------------------------------------------------------------------------

_SIZE = r"([\d.]+ ?[KMGT]?i?B?)"
_HBM = (  # libtpu's messages, see facts.md
    re.compile(rf"Ran out of memory in memory space hbm\.\s*Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"memory required for [^()]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)
_TENSOR = re.compile(r"OOM when allocating tensor with shape(\[[\d,]*\]) and type (\w+) on (\S+)")
_EXHAUSTED = re.compile(r"(?=.*(?:out of memory|allocat|OOM|\bhbm\b)).*", re.IGNORECASE)
_SMALLER = (
    "Use a smaller batch per replica, --precision bf16 (activations need half the memory), or tf.recompute_grad "
    "around large blocks. %tpu_preflight shows what a program needs before a run."
)


def _memory(error: LocatedError) -> TpuMagicsError | None:
    hbm = next((found for found in (sign.search(error.text) for sign in _HBM) if found), None)
    if hbm:
        why = f"The compiled program needs {hbm[1]}, and {hbm[2]} are available."
        return error.explain("The step does not fit into the TPU's memory (HBM)", why, _SMALLER, [error.quote(hbm)])
    tensor = _TENSOR.search(error.text)
    if tensor:
        return _tensor(error, *tensor.groups())
    exhausted = "ResourceExhausted" in type(error.error).__name__ or "RESOURCE_EXHAUSTED" in error.text
    found = _EXHAUSTED.search(error.text) if exhausted else None
    if found:
        why = "TensorFlow could not allocate memory. Its message does not say how much."
        return error.explain("Out of memory", why, _SMALLER, [error.quote(found)])
    return None


def _tensor(error: LocatedError, shape: str, dtype: str, device: str) -> TpuMagicsError:
    on_host = "CPU:" in device
    return error.explain(
        f"A tensor of shape {shape} ({dtype}) does not fit into the memory of {_short(device)}",
        f"TensorFlow allocates it in one piece, and {'this host' if on_host else 'the device'} does not have that "
        "much free.",
        "Use a smaller batch or tensor, or a pipeline that reads the data in pieces." if on_host else _SMALLER,
    )


# -- the strategy's scope ---------------------------------------------------------------------------------------------

_SCOPE = re.compile(
    r"Mixing different tf\.distribute\.Strategy objects"
    r'|Need to be inside "with strategy\.scope\(\)"'
    r"|which is different from the scope used for the original variable"
)


# Keras 3.15 asserts there, without a message, that the variables belong to a strategy.
_UPDATE = "keras/src/backend/tensorflow/optimizer.py"


def _scope(error: LocatedError) -> TpuMagicsError | None:
    found = _SCOPE.search(error.text)
    if not found and not _is_assertion_of_keras(error):
        return None
    used = f", and are used at {error.place}" if error.place else ""
    return TpuMagicsError(
        f"The model, its optimizer or its metrics were created outside the strategy's scope{used}.",
        "Variables belong to the strategy in whose scope they were created, and a step can use the variables "
        "of only one strategy.",
        "Create the model, the optimizer and the metrics, and call model.compile, under `with "
        "strategy.scope():`, or all in the cell under %%tpu_train, which runs inside the scope.",
        [*error.details(error.made), *([error.quote(found)] if found else ())],
    )


def _is_assertion_of_keras(error: LocatedError) -> bool:
    silent = isinstance(error.error, AssertionError) and not error.text
    return silent and bool(error.raised) and Path(error.raised[-1][0]).as_posix().endswith(_UPDATE)


_EXPLAINERS: tuple[Callable[[LocatedError], TpuMagicsError | None], ...] = (
    _no_tpu,
    _no_python_on_host,
    _other_device,
    _memory,
    _scope,
)


def explain(error: LocatedError) -> TpuMagicsError | None:
    """The error explained, if it is about a device, memory or a scope."""
    return next((found for found in (explain(error) for explain in _EXPLAINERS) if found), None)
