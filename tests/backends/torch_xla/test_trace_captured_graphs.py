"""What is different in a graph from the one before it, in words, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.traced import traced
from tpu_magics.backends import hlo
from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.torch_xla.trace.captured_graphs import GraphListing, difference

LINE, OTHER = SourceLine("In [3]", 5, "w = torch.ones(n, 4)"), SourceLine("In [3]", 6, "loss = w.sum()")
TEXT = """HloModule m, entry_computation_layout={{(f32[{n},8])->(f32[])}}

%Add.1 (x.2: f32[], y.3: f32[]) -> f32[] {{
  %x.2 = f32[] parameter(0)
  %y.3 = f32[] parameter(1)
  ROOT %add.4 = f32[] add(f32[] %x.2, f32[] %y.3)
}}

ENTRY %m.9 (p0.5: f32[{n},8]) -> (f32[]) {{
  %p0.5 = f32[{n},8]{{1,0}} parameter(0)
  %constant.6 = f32[] constant({value})
  %broadcast.8 = f32[{size},4]{{1,0}} broadcast(f32[] %constant.6), dimensions={{}}
  %constant.7 = f32[] constant(0)
  %reduce.10 = f32[] reduce(f32[{size},4]{{1,0}} %broadcast.8, f32[] %constant.7), dimensions={{0,1}}, to_apply=%Add.1
  ROOT %tuple.11 = (f32[]) tuple(f32[] %reduce.10)
}}
"""
# The module's instructions stand in the order of their names' numbers: 3 is p0.5, 4 constant.6, 6 broadcast.8.
PLACES = {4: LINE, 5: OTHER, 6: LINE, 7: OTHER}


def seen(n: int = 8, size: int = 8, value: int = 2, parameters: tuple[str, ...] = ()) -> GraphListing:
    text = TEXT.format(n=n, size=size, value=value)
    return GraphListing.of(text, hlo.parse(text), PLACES, parameters)


def test_instructions_find_their_lines_by_their_names() -> None:
    found = seen()
    opcodes = [op.opcode for op in found.graph.ops]
    told = {opcode: place for opcode, place in zip(opcodes, found.places, strict=True) if opcode != "constant"}
    assert (told["broadcast"], told["reduce"], told["parameter"]) == (LINE, OTHER, None)


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [
        (seen(), seen(), ""),
        (seen(size=9), seen(), "In [3]:5 (w = torch.ones(n, 4)): f32[9,4] now, before f32[8,4]."),
        (seen(value=3), seen(), "In [3]:5 (w = torch.ones(n, 4)): 3 now, before 2."),
        (
            seen(n=9, parameters=("f32[9,8] x",)),
            seen(parameters=("f32[8,8] x",)),
            "x is now f32[9,8], before f32[8,8].",
        ),
        (
            seen(parameters=("f32[8,8] x", "f32[4] old", "f32[]")),
            seen(parameters=("f32[8,8] x", "f32[]")),
            "New inputs: f32[4] old.",
        ),
        (
            seen(parameters=("f32[8,8] x",)),
            seen(parameters=("f32[8,8] x", *(f"f32[4] kept[{n}]" for n in range(5)))),
            "Removed inputs: f32[4] kept[0], f32[4] kept[1], f32[4] kept[2] and 2 more.",
        ),
    ],
)
def test_what_is_told(new: GraphListing, old: GraphListing, text: str) -> None:
    assert difference(new, old) == text


# -- in training functions --------------------------------------------------------------------------------------------


def other_shapes(step: int, x: Any) -> Any:
    return x.sum() + torch.ones(8 + 8 * step, 256, device=x.device).sum()


def other_loops(step: int, x: Any) -> Any:
    total = x.sum()
    for _ in range(step):
        total = total + x.abs().sum()
    return total


def syncs_in_many_lines(loss: Callable[[int, Any], Any]) -> None:
    import torch_xla

    x = torch.ones(4, 4, device=torch_xla.device(), requires_grad=True)
    for step in range(6):
        value = loss(step, x)  # alive at the sync
        value.backward()
        exec(compile("\n" * step + "torch_xla.sync()", __file__, "exec"), {"torch_xla": torch_xla})


def trains(loss: Callable[[int, Any], Any]) -> None:
    import torch_xla

    x = torch.ones(4, 4, device=torch_xla.device(), requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        value = loss(step, x)  # alive at the sync
        value.backward()
        optimizer.step()
        torch_xla.sync()


@pytest.mark.process
@pytest.mark.usefixtures("fresh_session")
@pytest.mark.parametrize(
    ("function", "loss", "cause", "line"),
    [
        (
            trains,
            other_shapes,
            "python-number",
            "torch.ones(8 + 8 * step, 256, device=x.device).sum()): f32[24,256] now",
        ),
        (trains, other_loops, "new-code", "(total = total + x.abs().sum()): "),
        (syncs_in_many_lines, other_shapes, "new-line", "256, device=x.device).sum()): f32[24,256] now"),
    ],
)
def test_a_graph_that_changes_in_each_step(function: Any, loss: Any, cause: str, line: str) -> None:
    found = traced(function, loss)
    assert not found.settled and len(found.changes) == 3 and {one for one, _ in found.changes} == {cause}
    assert line in found.changes[0][1] and f"{__file__}:" in found.changes[0][1]
