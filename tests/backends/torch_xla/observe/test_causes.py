"""Which function of a library is named where a line runs more than one graph."""

from __future__ import annotations

import pytest

from tpu_magics.backends.torch_xla.observe.causes import new_functions

TRAIN = ("/site-packages/transformers/trainer.py", "train")
SYNC = ("/site-packages/torch_xla/core/xla_model.py", "mark_step")
READ = ("/site-packages/torch/_tensor.py", "__float__")
DEPRECATED = ("/site-packages/typing_extensions.py", "wrapper")
NO_GRAD = ("/site-packages/torch/utils/_contextlib.py", "decorate_context")


@pytest.mark.parametrize(
    ("new", "first"),
    [
        ([SYNC, DEPRECATED, TRAIN], SYNC),  # innermost first, as a stack is told
        ([READ, SYNC, NO_GRAD, DEPRECATED, TRAIN], SYNC),
        ([READ, TRAIN], READ),
        ([DEPRECATED, TRAIN], DEPRECATED),
    ],
)
def test_a_decorator_is_named_only_where_there_is_nothing_else(
    new: list[tuple[str, str]], first: tuple[str, str]
) -> None:
    assert new_functions(new, [TRAIN])[0] == first
