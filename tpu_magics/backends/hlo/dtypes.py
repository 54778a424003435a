"""XLA's names of element types, and those of the frameworks: "f32" and "float32"."""

from __future__ import annotations

_XLA = {"bool": "pred", "bfloat16": "bf16"}
_FRAMEWORK = {xla: name for name, xla in _XLA.items()}
_PREFIXES = (("f", "float"), ("s", "int"), ("u", "uint"), ("c", "complex"))


def xla_name(dtype: str) -> str:
    """XLA's name of a framework's element type: "float32" -> "f32", "int64" -> "s64", "bool" -> "pred"."""
    return _XLA.get(dtype) or next(
        (short + dtype.removeprefix(long) for short, long in _PREFIXES if dtype.startswith(long)), dtype
    )


def framework_name(dtype: str) -> str:
    """A framework's name of XLA's element type: "f32" -> "float32", "s64" -> "int64", "pred" -> "bool"."""
    return _FRAMEWORK.get(dtype) or next(
        (long + dtype[1:] for short, long in _PREFIXES if dtype.startswith(short) and dtype[1:].isdigit()), dtype
    )
