"""jit_compile=True in a program that runs on a TPU.

What it does
    Reports `jit_compile=True` passed to a Keras model's `compile` or to `tf.function`, in a program that creates a
    TPUStrategy, and `model.jit_compile = True`.
Why this is bad
    `jit_compile=True` makes TensorFlow compile a function with XLA on a CPU or GPU. Under a TPUStrategy the whole step
    is already compiled for the TPU; inside it the option has no use and can fail. Use it for the rehearsal on a CPU or
    GPU, and remove it for the TPU.
Example
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="mse", jit_compile=True)
Use instead
    with strategy.scope():
        model = make_model()
        model.compile(optimizer="adam", loss="mse")
Limitations
    A value that is decided at run time is not reported (`jit_compile=not on_tpu` is right).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _device_guards, _tensorflow
from tpu_magics.check.values import INSTANCE, MODEL, UNKNOWN

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

CODE = "TPU701"
NAME = "jit-compile-on-tpu"
GROUP = "tensorflow"
WHY = (
    "Under a TPUStrategy the whole step is already compiled for the TPU: jit_compile=True is for the rehearsal on a "
    "CPU or GPU; on the TPU it has no use and can fail."
)
NODES = (ast.Assign,)

_KEYWORDS = ("jit_compile", "experimental_compile")
_FUNCTION = "tensorflow.function"


def check(node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
    target = node.targets[0]
    if not isinstance(target, ast.Attribute) or target.attr != "jit_compile" or ctx.constant(node.value) is not True:
        return
    if _tensorflow.strategies(ctx.program) and not _device_guards.is_in_other_device_branch(node, ctx):
        yield ctx.finding(node, f"{ctx.source(target)} is True in a program for a TPU.", "Remove it.")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    if not _tensorflow.strategies(program):
        return
    compiles = [call for call in program.methods("compile") if _is_model(call)]
    in_scope = any(_tensorflow.is_in_scope(call) for call in compiles)
    for call in compiles:
        if not in_scope or not _is_apart(call):
            yield from _found(call)
    for call in program.calls(_FUNCTION, "functools.partial"):
        if call.name == _FUNCTION or (call.node.args and call.ctx.name(call.node.args[0]) == _FUNCTION):
            yield from _found(call)


def _is_model(call: CallSite) -> bool:
    return call.receiver.kind in (MODEL, INSTANCE, UNKNOWN)


def _is_apart(call: CallSite) -> bool:
    """Whether a model is compiled outside the scope, in a program that compiles one for the TPU inside it."""
    return _tensorflow.state(call) == _tensorflow.OUT and not _tensorflow.is_receiver_in_scope(call)


def _found(call: CallSite) -> Iterator[Finding]:
    ctx = call.ctx
    for name in _KEYWORDS:
        value = ctx.argument(call.node, name)
        if value is None or ctx.constant(value) is not True or _device_guards.is_in_other_device_branch(call.node, ctx):
            continue
        keyword = next((one for one in call.node.keywords if one.arg == name), None)
        callee = ctx.source(call.node.func)
        yield ctx.finding(
            keyword or value,
            f"{callee} is called with {name}=True in a program for a TPU.",
            f"Remove {name}=True, or write {name}=not on_tpu if the program also runs on a CPU or GPU.",
            edits=_argument_edits.remove_argument(call.node, keyword, ctx) if keyword is not None else (),
        )
