"""A TensorArray that starts empty and grows in code that XLA compiles.

What it does
    Reports `tf.TensorArray(dtype, size=0, dynamic_size=True)` in TensorFlow code that XLA compiles: under a
    TPUStrategy, or in a function with `jit_compile=True`.
Why this is bad
    In XLA the array keeps its initial size and never grows. Elements written beyond that are lost: the result is empty,
    without an error. (Seen with TensorFlow 2.21, in loops over values and over numbers.)
Example
    outs = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(n):
        outs = outs.write(i, values[i])
Use instead
    outs = tf.TensorArray(tf.float32, size=LONGEST)
    for i in tf.range(LONGEST):
        outs = outs.write(i, tf.where(i < n, values[i], 0.0))
Limitations
    A size that is decided at run time, and a size above 0 that is too small, are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU206"
NAME = "growing-tensor-array"
GROUP = "shapes"
WHY = (
    "In XLA a TensorArray keeps its initial size: elements written to one of size 0 are lost, and the result is empty, "
    "without an error."
)
NODES = (ast.Call,)

_NAMES = ("tensorflow.TensorArray", "tensorflow.compat.v1.TensorArray")
_FIX = "Create it with its final size, as a Python number: `tf.TensorArray(dtype, size=LONGEST)`."


def check(node: ast.Call, ctx: RuleContext) -> Iterator[Finding]:
    if ctx.name(node) not in _NAMES or not ctx.compiled_tf:
        return
    grows = ctx.constant(ctx.argument(node, "dynamic_size", 2)) is True
    size = ctx.constant(ctx.argument(node, "size", 1))
    if grows and size == 0 and not isinstance(size, bool) and not _is_filled(node, ctx):
        yield ctx.finding(node, f"{ctx.source(node.func)} has size 0 and cannot grow in code that XLA compiles.", _FIX)


def _is_filled(node: ast.Call, ctx: RuleContext) -> bool:
    """`tf.TensorArray(...).unstack(values)` has the size of the values."""
    parent = ctx.parent(node)
    return isinstance(parent, ast.Attribute) and parent.attr == "unstack"
