"""Python code in the data pipeline of a remote TPU.

What it does
    Reports `to_tf_dataset`, `prepare_tf_dataset`, `Dataset.from_generator`, `tf.numpy_function` and `tf.py_function` in
    a program whose TPU is another host (TPUClusterResolver with a name or an address).
Why this is bad
    The pipeline runs on the TPU's host, which has neither this Python process nor its functions: it fails with "No
    registered 'PyFunc' OpKernel". On a TPU VM (`tpu="local"`) the pipeline runs on the same machine, and all of these
    work.
Example
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="my-tpu-node")
    train = tf.data.Dataset.from_generator(samples, output_signature=signature)
Use instead
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="my-tpu-node")
    train = tf.data.Dataset.from_tensor_slices(arrays)  # in memory; or tf.data.TFRecordDataset("gs://bucket/...")
Limitations
    Which TPU is used is unknown if the resolver's argument comes from outside the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _tensorflow

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU704"
NAME = "python-pipeline-remote-tpu"
GROUP = "tensorflow"
WHY = (
    "The pipeline runs on the TPU's host, which has neither this Python process nor its functions: it fails with \"No "
    "registered 'PyFunc' OpKernel\"."
)

_FIX = (
    "Pass arrays in memory to tf.data.Dataset.from_tensor_slices, read TFRecords from a gs:// bucket, or use a TPU VM "
    '(tpu="local").'
)
_METHODS = ("to_tf_dataset", "prepare_tf_dataset")
_NAMES = (
    "tensorflow.data.Dataset.from_generator",
    "tensorflow.numpy_function",
    "tensorflow.py_function",
    "tensorflow.compat.v1.py_func",
    "tensorflow.experimental.numpy_function",
)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not program.tpu_tf or not _tensorflow.is_remote(program):
        return
    calls = [*program.calls(*_NAMES), *(call for method in _METHODS for call in program.methods(method))]
    for call in calls:
        if not _tensorflow.is_on_client(call):
            callee = " ".join(call.ctx.source(call.node.func).split())
            yield call.ctx.finding(call.node, f"{callee} runs Python in the pipeline of a remote TPU.", _FIX)
