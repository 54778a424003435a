"""Names of element types."""

from __future__ import annotations

import pytest

from tpu_magics.backends.hlo.text import framework_name, xla_name


@pytest.mark.parametrize(
    ("xla", "framework"),
    [
        ("f32", "float32"),
        ("bf16", "bfloat16"),
        ("s64", "int64"),
        ("u8", "uint8"),
        ("pred", "bool"),
        ("c64", "complex64"),
        ("f8e4m3fn", "f8e4m3fn"),
    ],
)
def test_element_types_have_two_names(xla: str, framework: str) -> None:
    assert framework_name(xla) == framework and xla_name(framework) == xla
