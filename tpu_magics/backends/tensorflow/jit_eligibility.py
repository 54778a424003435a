"""Whether XLA can compile a tf.function, judged by its arguments and its traced graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpu_magics.backends.tensorflow.source_locations import ops

_UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")
_PIPELINE = ("Iterator", "Dataset", "OptionalFromValue", "OptionalGetValue")

IN_ARGUMENTS = (
    "jit_compile stays off: it takes its batches from an iterator or a dataset, and XLA cannot compile an input "
    "pipeline. A step that it calls is compiled if it is a tf.function of its own or is passed to strategy.run"
)
_IN_GRAPH = (
    "jit_compile stays off: it reads from an input pipeline, which XLA cannot compile. A step that it calls is "
    "compiled if it is a tf.function of its own or is passed to strategy.run"
)
_REPLICAS = "jit_compile stays off: it runs on several replicas, and XLA cannot compile collectives on a CPU"
# Seen in 2.21: no error; with size 0 the result is empty, with size 2 two of five elements are kept.
_GROWS = (
    "; it writes to a TensorArray with dynamic_size=True, which cannot grow under XLA: elements beyond its size "
    "are lost without an error, so set its size to the maximum"
)


def growth_warning(graph: Any) -> str:
    """A warning for a function that XLA compiles and that lets a TensorArray grow; "" if it does not."""
    writes = (op for _, op in ops(graph) if op.type == "TensorListSetItem")
    return _GROWS if any(op.get_attr("resize_if_index_out_of_bounds") for op in writes) else ""


def has_pipeline(arguments: Any) -> bool:
    """Whether a dataset or a dataset iterator is among the arguments."""
    kinds = (tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)
    try:
        return any(isinstance(one, kinds) for one in tf.nest.flatten(arguments))
    except (TypeError, ValueError):  # keys that cannot be sorted
        return False


def ineligible_reason(graph: Any) -> str | None:
    """Why XLA should not compile a traced function: a sentence; "" if it changes no variable; None if XLA should."""
    found = [op for _, op in ops(graph)]
    if any(sign in op.type for op in found for sign in _PIPELINE):
        return _IN_GRAPH
    if len({op.device for op in found if op.device and op.type.startswith(_UPDATES)}) > 1:
        return _REPLICAS
    return None if any(op.type.startswith(_UPDATES) for op in found) else ""
