"""Pieces of graphs that collectives cut, put together to the graphs that a TPU would compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_magics.backends import hlo
from tpu_magics.backends.torch_xla.observe.xla_dumps import GraphPieces, XlaCompileReport, XlaDumps, joined

# As torch_xla 2.9.0 writes them with PT_XLA_DEBUG_LEVEL=2 (debug_util.cpp) here, with fewer lines of frames.
COMPILED = """
Compilation Analysis: ================================================================================
Compilation Analysis: Compilation Cause
Compilation Analysis:   user torch_xla.sync
Compilation Analysis: Graph Info:
Compilation Analysis:   Graph Hash: {0}
Compilation Analysis:   Number of Graph Inputs: 12
Compilation Analysis:   Number of Graph Outputs: 9
Compilation Analysis: Python Frame Triggered Execution:
Compilation Analysis:   step (/home/me/train.py:15)
Compilation Analysis: --------------------------------------------------------------------------------
Compilation Analysis: ================================================================================

Computation hash: 571e7bacb04095bfb26edf6ee651c7d7

Post Compilation Analysis: ================================================================================
Post Compilation Analysis: Graph input size: 0.500000 GB
Post Compilation Analysis: Graph output size: 0.250000 GB
Post Compilation Analysis: Aliased Input size: 0.000000 GB
Post Compilation Analysis: Intermediate tensor size: 0.000000 GB
Post Compilation Analysis: Compiled program size: 0.000000 GB
Post Compilation Analysis: --------------------------------------------------------------------------------
Post Compilation Analysis: ================================================================================
"""
EXECUTED = """
Execution Analysis: ================================================================================
Execution Analysis: Execution Cause
Execution Analysis:   user torch_xla.sync
Execution Analysis: Graph Info:
Execution Analysis:   Graph Hash: {0}
Execution Analysis:   Number of Graph Inputs: 12
Execution Analysis:   Number of Graph Outputs: 9
Execution Analysis: Python Frame Triggered Execution:
Execution Analysis:   step (/home/me/train.py:15)
Execution Analysis: --------------------------------------------------------------------------------
Execution Analysis: ================================================================================
"""


class FakeRuntime:
    """Writes what the runtime writes when graphs run: each is compiled at its first time."""

    def __init__(self, folder: Path) -> None:
        self.files = XlaDumps(folder, rank=1)
        self.files.arrange({})
        self.pieces = GraphPieces(self.files)
        self.compiled: set[str] = set()

    def runs(self, *hashes: str) -> tuple[int, int]:
        """How many ran, and how many of them were compiled."""
        before = len(self.compiled)
        with self.files.debug_file.open("a") as file:
            for one in hashes:
                file.write(EXECUTED.format(one) if one in self.compiled else (COMPILED + EXECUTED).format(one))
                self.compiled.add(one)
        return len(hashes), len(self.compiled) - before

    def step(self, cut: str, rest: str = "") -> list[XlaCompileReport]:
        """A step that one collective cuts in two."""
        self.pieces.cut(*self.runs(cut))
        return self.pieces.end_step(*self.runs(*([rest] if rest else [])))


@pytest.fixture
def runtime(tmp_path: Path) -> FakeRuntime:
    return FakeRuntime(tmp_path / "worker-0")


def test_lengths_that_come_again_are_compiled_as_one_rank_would(runtime: FakeRuntime) -> None:
    """AdamW with lengths 8, 9, 8, 10: four whole graphs, though only five pieces are compiled."""
    told = [
        runtime.step(f"forward {n}".replace(" ", "_"), rest) for n, rest in ((8, "a"), (9, "b"), (8, "b"), (10, "b"))
    ]
    assert [len(one) for one in told] == [1, 1, 1, 1] and len(runtime.compiled) == 5
    assert [one[0].pieces for one in told] == [2, 2, 2, 2]
    assert len({one[0].hash for one in told}) == 4
    assert runtime.step("forward_8", "b") == [] and runtime.step("forward_10", "b") == []


def test_the_parts_of_a_new_graph_are_told_together(runtime: FakeRuntime) -> None:
    [told] = runtime.step("forward", "update")
    assert (told.inputs, told.outputs, told.pieces) == (24, 18, 2)
    assert told.frames == (("step", "/home/me/train.py", 15),)
    assert told.memory == {"aliased": 0, "arguments": 1 << 29, "code": 0, "outputs": 1 << 28, "temporaries": 0}
    assert told.graph is None  # nothing was dumped


def test_a_collective_may_be_the_end_of_a_step(runtime: FakeRuntime) -> None:
    assert [one.pieces for one in runtime.step("metric")] == [1]
    assert runtime.step("metric") == []
    assert runtime.pieces.end_step(*runtime.runs()) == []


def test_a_read_has_a_graph_of_its_own_and_cuts_nothing(runtime: FakeRuntime) -> None:
    for times in (1, 0):
        runtime.pieces.cut(*runtime.runs("forward"))
        assert len(runtime.pieces.run(*runtime.runs("loss"))) == times
        assert len(runtime.pieces.end_step(*runtime.runs("update"))) == times
    assert runtime.step("forward", "update") == []  # the same graph, also without the read


def test_a_read_of_what_a_cut_has_run_counts_once_for_each_tensor_and_line(runtime: FakeRuntime) -> None:
    for times in (1, 0):
        runtime.pieces.cut(*runtime.runs("forward"))
        assert [len(runtime.pieces.read(tensor, site=3)) for tensor in (7, 7)] == [times, 0]
        assert len(runtime.pieces.read(8, site=4)) == times
        assert len(runtime.pieces.end_step(*runtime.runs("update"))) == times
    assert runtime.pieces.read(9, site=3) == []  # no cut since the sync: it is data


def test_graphs_that_nobody_named_are_told_apart_by_their_compiles(tmp_path: Path) -> None:
    pieces = GraphPieces(XlaDumps(None))
    assert len(pieces.end_step(1, 1)) == 1 and len(pieces.end_step(1, 1)) == 1


def test_a_long_file_is_emptied_and_read_on(runtime: FakeRuntime) -> None:
    for number in range(400):
        assert len(runtime.step(f"{number}", "update")) == 1
    assert runtime.files.debug_file.stat().st_size < 1 << 20
    assert runtime.step("399", "update") == []


def test_seconds_count_once(runtime: FakeRuntime) -> None:
    """A piece that was compiled in one step and comes again in the next one with another rest."""
    runtime.step("forward", "first")
    runtime.pieces.cut(*runtime.runs("forward"))
    assert [one.seconds for one in runtime.pieces.read(1, site=0)] == [0.0]
    assert [one.pieces for one in runtime.pieces.end_step(*runtime.runs("second"))] == [2]


def test_seconds_are_of_what_was_compiled_now() -> None:
    first, second = XlaCompileReport("a", seconds=2.0), XlaCompileReport("b", seconds=0.5)
    assert joined(("a", "b"), (first, second), {"a": first, "b": second}).seconds == 2.5
    assert joined(("a", "b"), (first, second), {"b": second}).seconds == 0.5
    assert joined(("a", "b"), (first, second), {}).seconds == 0.0
    assert joined(("a",), (first,), {"a": first}).seconds == 2.0 and joined(("a",), (first,), {}).seconds == 0.0
    unknown = XlaCompileReport("c")
    assert joined(("a", "c"), (first, unknown), {"c": unknown}).seconds is None


MODULE = """HloModule SyncTensorsGraph.{0}, entry_computation_layout={{(f32[{1},4]{{1,0}})->(f32[{1},4]{{1,0}})}}

ENTRY %SyncTensorsGraph.{0} (p0.1: f32[{1},4]) -> (f32[{1},4]) {{
  %p0.1 = f32[{1},4]{{1,0}} parameter(0)
  %{2}.2 = f32[{1},4]{{1,0}} {2}(f32[{1},4]{{1,0}} %p0.1)
  ROOT %tuple.3 = (f32[{1},4]{{1,0}}) tuple(f32[{1},4]{{1,0}} %{2}.2)
}}
"""


def test_graphs_are_joined_as_they_run() -> None:
    forward, update = hlo.parse(MODULE.format(5, 8, "tanh")), hlo.parse(MODULE.format(9, 2, "negate"))
    whole = hlo.join([forward, update])
    assert [str(one) for one in whole.parameters] == ["f32[8,4]", "f32[2,4]"]
    assert [op.opcode for op in whole.ops] == ["parameter", "tanh", "tuple", "parameter", "negate", "tuple"]
    assert whole.counts["parameter"] == 2 and whole.digest not in (forward.digest, update.digest)
    longer = hlo.join([hlo.parse(MODULE.format(5, 9, "tanh")), update])
    change = hlo.compare(longer, whole)
    assert change.same_ops and change.dims == ((8, 9),) and hlo.distance(longer, whole) > 0
    assert hlo.distance(whole, hlo.join([forward, update])) == 0
