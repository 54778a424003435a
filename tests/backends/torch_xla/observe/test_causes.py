"""Which function of a library is named where a line runs more than one graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import CompileCause
from tpu_magics.backends.torch_xla.observe import causes
from tpu_magics.backends.torch_xla.observe.causes import new_functions
from tpu_magics.backends.torch_xla.observe.evidence import TorchCompileEvidence
from tpu_magics.backends.torch_xla.observe.python_values import FrameSnapshot, TensorInfo
from tpu_magics.backends.torch_xla.observe.step_events import StepEvents, StepFacts
from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaCompileReport
from tpu_magics.runs.events import Site

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


def seen(tensor: torch.Tensor, name: str) -> TensorInfo:
    return TensorInfo(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), "xla", id(tensor))


def test_an_input_has_the_shape_of_the_tensor_that_came_last_where_its_id_is_used_again() -> None:
    """Where no sync ends the steps, those of all batches since the first are known, most of which are gone."""
    events, place, other = StepEvents(), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    events.on_upload(place)
    events.on_upload(other)
    place.data, other.data = other.data, place.data  # the next batch, with the ids the other way round
    events.on_upload(other)
    events.on_upload(place)
    variables = FrameSnapshot(tensors={"x": seen(other, "x"), "y": seen(place, "y")})
    found = {one.name: one.shape for one in events.inputs(variables, [])}
    assert (found["x"], found["y"]) == ((4, 2), (4,))


def test_what_a_method_of_a_tensor_calls_self_is_no_input() -> None:
    weight = torch.zeros(8, 10)
    variables = FrameSnapshot(tensors={"self": seen(weight, "self"), "x": seen(weight, "x")})
    assert [one.name for one in StepEvents().inputs(variables, [("f32", (8, 10))])] == ["x"]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({1: (False,)}, {1: (False,)}, None),  # the branch was the same one
        (
            {1: (5,), 2: (0.5,)},
            {1: (5,), 2: (0.7,)},
            "Python may have taken another branch because of a tensor's value, read in line 2 of x.",
        ),
        (
            {1: (1, 2), 2: (True,)},
            {1: (1, 3), 2: (False,)},
            "Python took another branch because of a tensor's value, read in line 2 of x.",
        ),
        ({}, {1: (True,)}, "Python may have taken another branch because of a tensor's value, read in line 1 of x."),
    ],
)
def test_a_branch_is_the_cause_only_where_another_value_was_read(before: Any, now: Any, said: str | None) -> None:
    new, old = (SimpleNamespace(facts=StepFacts(outcomes=outcomes)) for outcomes in (now, before))
    pair: Any = SimpleNamespace(new=new, old=old, cause=lambda *parts: CompileCause(*parts[:3]))
    lines = [Site(1, "x", 1), Site(2, "x", 2)][: len(now)]
    found = causes._branch(pair, lines)
    assert (found and found.text) == said and (found is None or f"line {found.deciding[0].line} of x" in found.text)


ITEM = """HloModule m, entry_computation_layout={(f32[9]{0})->(f32[1]{0})}

ENTRY %m.4 (p.1: f32[9]) -> (f32[1]) {
  %p.1 = f32[9]{0} parameter(0)
  %slice.2 = f32[1]{0} slice(%p.1), slice={[START:END]}
  %negate.3 = f32[1]{0} negate(%slice.2)
  ROOT %tuple.4 = (f32[1]{0}) tuple(%negate.3)
}
"""


def item(start: int, unused: str = "", indexed: str = "", **numbers: int) -> TorchCompileEvidence:
    graph = hlo.parse(ITEM.replace("START", str(start)).replace("END", str(start + 1)))
    values = FrameSnapshot(
        numbers={**numbers}, unused=frozenset(unused.split()), indexed=((("y", indexed),) if indexed else ())
    )
    facts = StepFacts(values=frozenset(range(9)))  # read from a tensor
    return TorchCompileEvidence(Site(1, "x", 1), start, 0, XlaCompileReport(graph=graph), facts=facts, snapshot=values)


@pytest.mark.parametrize(
    ("told", "how"),
    [
        ("i is now 4, before 3", {"unused": "same"}),
        ("i is now 4, before 3", {"indexed": "i"}),
        ("i is now 4, before 3", {"unused": "same", "indexed": "i"}),
        ("Its name in your code was not found", {"unused": "same end i"}),
    ],
)
def test_which_element_is_taken_is_no_size_and_only_a_name_that_is_used_is_blamed(told: str, how: Any) -> None:
    new, old = (item(start, end=start + 1, same=start, i=start, **how) for start in (4, 3))
    found = causes.explain(new, old)
    assert (found.cause, told in found.text) == ("python-number", True), found.text
