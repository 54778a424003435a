"""What is made of the folder that a traced worker leaves, and of how it ended; and how a trace fares that needs more
memory than this machine has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.backends.lowered import TRACED, HostRead, LoweredGraph, SourceLine, write_trace
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import Request, function_request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight import pipeline
from tpu_magics.runs.events import Compile, Site, Warned
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter

LINE = SourceLine("In [3]", 12, "torch_xla.sync()")
CODE = SourceLine("In [3]", 9, "loss = model(x)")


def graph(number: int) -> LoweredGraph:
    return LoweredGraph(
        b"module %d" % number, "hlo", f"hash {number}", (0, 1), site=LINE, places={0: CODE, 3: LINE, 4: CODE}
    )


def train() -> None:
    """Never run here."""


class Left:
    """What a worker left: its folder of graphs, and the run's records."""

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder.create("preflight", folder)
        self.graphs = folder / "graphs"
        self.writer = EventWriter(self.run.events_path(0), 0)

    def write(self, count: int = 2, **more: Any) -> None:
        found = {"syncs": 3, "settled": True, **more}
        write_trace(
            self.graphs, [(graph(n), n == count - 1) for n in range(count)], found.pop("reads", ()), (), **found
        )

    def compiled(self, nth: int, cause: str = "", text: str = "") -> None:
        nearest = nth - 1 if cause else None
        self.writer.write(Compile(0.0, 0, site=Site(0, "In [3]", 12), nth=nth, cause=cause, text=text, nearest=nearest))


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


@pytest.fixture
def traced(left: Left, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Trace, where launching has already happened: it left what `left` has, or ended with `error`."""

    def run(error: Exception | None = None, world: int = 1) -> Any:
        @contextmanager
        def fake_road(_request: Request, _options: Options, _asked: TracingOptions) -> Iterator[tuple[Path, Run]]:
            if error is not None:
                raise error
            yield left.graphs, Run(left.run.path)

        monkeypatch.setattr(pipeline.tracing, "traced", fake_road)
        return pipeline.trace(function_request(train, (), {}), Options(), TracingOptions(world))

    return run


# -- a folder ---------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read(left: Left, traced: Callable[..., Any]) -> None:
    inside = SourceLine("transformers/masking_utils.py", 123, "if mask.all():")
    reads = (HostRead(CODE, "a value", 3, inside, known=True), HostRead(None, "a tensor"))
    left.write(reads=reads, batch=8, rows=[8, None], sequence=[0, 1, 1], notes=["a note"], seconds=0.5)
    found = traced()
    assert found.graphs[0] == LoweredGraph(**{**vars(graph(0)), "steady": False}) and found.graphs[1] == graph(1)
    assert (found.syncs, found.settled, found.batch, found.notes) == (3, True, 8, ("a note",))
    assert (found.reads, found.sequence, found.rows) == (reads, (0, 1, 1), (8, None))


def test_reads_of_an_older_version_are_read(left: Left, traced: Callable[..., Any]) -> None:
    left.write()
    path = left.graphs / TRACED
    data = {**json.loads(path.read_text()), "reads": [{"place": None, "what": "a value", "count": 2}]}
    path.write_text(json.dumps(data))
    assert traced().reads == (HostRead(None, "a value", 2),)


def test_where_nothing_was_written_it_did_nothing(traced: Callable[..., Any]) -> None:
    with pytest.raises(TpuMagicsError, match="train came to no sync") as caught:
        traced()
    assert "It did nothing on the XLA device" in caught.value.why and "ranks" not in caught.value.why


def test_one_graph_at_the_end_is_no_step_and_ranks_may_lack_data(left: Left, traced: Callable[..., Any]) -> None:
    left.write(1, syncs=0)
    with pytest.raises(TpuMagicsError) as caught:
        traced(world=8)
    assert "Everything it did is one graph at its end" in caught.value.why
    assert "one of 8 ranks, and each gets 1/8 of the data" in caught.value.why
    assert caught.value.todo.endswith("data for at least three steps on each rank.")


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        (TRACED, lambda path: path.write_text('{"graphs": [')),
        (TRACED, lambda path: path.write_text("{}")),
        ("graph-1.pb", Path.unlink),
    ],
)
def test_a_broken_or_missing_file_is_told(
    name: str, spoil: Callable[[Path], object], left: Left, traced: Callable[..., Any]
) -> None:
    left.write()
    spoil(left.graphs / name)
    with pytest.raises(TpuMagicsError, match="The trace of train cannot be read") as caught:
        traced()
    assert name in caught.value.why


def test_warnings_of_the_trace_are_notes(left: Left, traced: Callable[..., Any]) -> None:
    left.write()
    left.writer.write(Warned(0.0, 0, code="observing-stopped", text="No more is told."))
    left.writer.write(Warned(0.0, 0, code="another", text="Of no interest."))
    assert traced().notes == ("No more is told.",)


# -- how it ended -----------------------------------------------------------------------------------------------------


def test_a_function_that_failed(traced: Callable[..., Any]) -> None:
    error = TrainingFailed(
        "Rank 0 raised ValueError: wrong.", "Why.", "Mend it. All of it: %tpu_logs last", ("a line",)
    )
    with pytest.raises(TpuMagicsError) as caught:
        traced(error)
    assert type(caught.value) is TpuMagicsError and not isinstance(caught.value, TrainingFailed)
    assert caught.value.what == "train failed during tracing: Rank 0 raised ValueError: wrong."
    assert (caught.value.why, caught.value.todo, caught.value.details) == ("Why.", "Mend it.", ("a line",))


def test_an_interrupt_stays_one(traced: Callable[..., Any]) -> None:
    with pytest.raises(TrainingInterrupted):
        traced(TrainingInterrupted("You stopped it."))


# -- changing graphs --------------------------------------------------------------------------------------------------


def test_causes_are_told_when_the_graph_changes(left: Left, traced: Callable[..., Any]) -> None:
    left.write(5, settled=False, differences=["", "a", "x is f32[3] now, before f32[2].", "", "In [3]:9: f32[4] now."])
    left.compiled(0)
    left.compiled(1, "optimizer-state", "The state was made.")
    left.compiled(2, "input-shape", "An input has another shape.")
    left.compiled(0)
    assert traced().changes == (
        ("input-shape", "An input has another shape. x is f32[3] now, before f32[2]."),
        ("new-line", "A step ends here for the first time."),
        ("unknown", "The reason why this graph differs is unknown. In [3]:9: f32[4] now."),
    )


def test_a_settled_function_has_no_causes(left: Left, traced: Callable[..., Any]) -> None:
    left.write(3)
    for nth in range(3):
        left.compiled(nth, "input-shape", "An input has another shape.")
    assert traced().changes == ()
