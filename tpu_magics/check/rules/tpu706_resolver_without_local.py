"""A TPUClusterResolver that does not say which TPU to use.

What it does
    Reports `TPUClusterResolver()`, `TPUClusterResolver(tpu="")`, `TPUClusterResolver.connect()` and a TPUStrategy
    without a resolver. Names, addresses and values from outside are not reported.
Why this is bad
    Without an argument TensorFlow looks for a TPU node with the name in the environment (TPU_NAME). On a TPU VM, where
    the TPU is in the same machine, there is none: "ValueError: Please provide a TPU Name to connect to." In the usual
    `try: ... except ValueError:` the program then runs on the CPU without a warning.
Example
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
Use instead
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
Limitations
    TPU_NAME is unknown if the host sets it. A program that mentions TPU_NAME or COLAB_TPU_ADDR itself is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.program import RESOLVERS
from tpu_magics.check.rules import _argument_edits, _tensorflow

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CallSite, CheckedProgram

CODE = "TPU706"
NAME = "resolver-without-local"
GROUP = "tensorflow"
WHY = (
    'On a TPU VM no TPU node has a name: TensorFlow raises "Please provide a TPU Name to connect to.", and inside '
    "try/except the program trains on the CPU."
)

_LOCAL = 'tpu="local"'
_OTHERS = ("zone", "project", "coordinator_address", "discovery_url")
_NAMED = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    resolvers, strategies = program.calls(*RESOLVERS), _tensorflow.strategies(program)
    if not (resolvers or strategies) or any(_tensorflow.mentions(program, one) for one in _NAMED):
        return
    if any(_tensorflow.is_local(call) for call in resolvers):
        return  # another one is tried too
    for call in resolvers:
        if _says_nothing(call):
            message = f"{call.ctx.source(call.node.func)} does not say which TPU to use."
            yield call.ctx.finding(call.node, message, f"Write {_LOCAL} on a TPU VM.", edits=_edits(call))
    for call in strategies:
        if not call.node.args and not call.node.keywords:
            message = f"{call.ctx.source(call.node.func)} is created without a resolver."
            yield call.ctx.finding(call.node, message, f"Pass TPUClusterResolver({_LOCAL}).")


def _says_nothing(call: CallSite) -> bool:
    ctx, node = call.ctx, call.node
    given = ctx.argument(node, "tpu", 0)
    if given is None:
        others = any(ctx.argument(node, one) is not None for one in _OTHERS)
        return not others and not ctx.has_unknown_arguments(node)
    return ctx.constant(given) in ("", None) and not isinstance(given, ast.Name)


def _edits(call: CallSite) -> tuple[Edit, ...]:
    given = call.ctx.argument(call.node, "tpu", 0)
    if given is None:
        return _argument_edits.add_argument(call.node, _LOCAL, call.ctx)
    return (call.ctx.replace(given, '"local"'),) if isinstance(given, ast.Constant) else ()
