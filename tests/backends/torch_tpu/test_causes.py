"""Failed guards, as torch 2.15.0 words them, as causes. Whole programs: test_observer.py."""

from __future__ import annotations

import pytest

from tpu_magics.backends.observe.compiles import CompileReport
from tpu_magics.backends.torch_tpu.observe.causes import TpuCompile, explain, guard_text
from tpu_magics.runs.events import Input, Site

SITE = Site(0, "In [3]", 6)
STACK = '\nUser stack trace:\n  File "/a/b.py", line 14, in step\n    l=m(x)*k'


def compiled(guard: str = "", *shape: int, short: frozenset[tuple[int, int]] = frozenset()) -> TpuCompile:
    inputs = (Input("x", shape, "float32"),) if shape else ()
    return TpuCompile(SITE, 0, 0, CompileReport(), inputs=inputs, short=short, guard=guard, function="step")


@pytest.mark.parametrize(
    ("guard", "cause"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5", "input-shape"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "input-shape"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual BFloat16", "input-dtype"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1", "mode-switch"),
        ("0/1: k == 1                    # l=m(x)*k  # b.py:14 in step" + STACK, "python-number"),
        ("0/0: L['keep'] == 2.5", "python-number"),
        ("0/0: len(values) == 1   # torch.stack(values)", "live-tensors"),
        ("0/0: not model.training   # x", "mode-switch"),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "mode-switch"),
        ("0/0: ___check_obj_id(f, 140234), type=<class 'function'>", "new-code"),
        ("0/0: something that no rule knows", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_guard_has_its_cause(guard: str, cause: str) -> None:
    found = explain(compiled(guard), compiled())
    assert found.cause == cause and found.text and found.fix


def test_inputs_that_were_seen_say_more_than_the_guard() -> None:
    found = explain(compiled("0/0: tensor 'x' size mismatch", 5, 3), compiled("", 4, 3))
    assert found.text == "The shape of an input changed: x now float32[5,3], before float32[4,3]."


def test_a_short_last_batch() -> None:
    new = compiled("0/0: tensor 'x' size mismatch at index 0. expected 32, actual 20", short=frozenset({(32, 20)}))
    assert explain(new, compiled()).cause == "last-batch"


def test_a_guard_is_shown_without_its_number_and_code() -> None:
    assert guard_text("0/1: k == 1        # l=m(x)*k  # b.py:14 in step" + STACK) == "k == 1"
