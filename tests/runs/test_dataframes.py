"""A run as DataFrames: their shape, and what is left out of records of any origin."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas
import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs import reader
from tpu_magics.runs.events import Compile, Event, Input, Site, Start, Steps, Value, to_line
from tpu_magics.runs.reader import Run

T = 1_795_239_243.25
SITE = Site(0, "In [3]", 14, "train", "torch_xla.sync()")
EVENTS = (
    Steps(T, 0, total=2, n=2, seconds=3.0, compiled=1, compiled_seconds=2.5),
    Value(T, 0, "loss", 2.5, 1),
    Value(T, 0, "lr", 0.1, 1),
    Value(T, 0, "loss", 2.0, 2),
    Value(T, 0, "loss", "nan", 2),
    Value(T, 0, "phase", "warm", 2),
    Steps(T + 1, 0, total=12, n=10, seconds=1.0),
    Value(T + 1, 0, "loss", 1.0, 12, n=10, low=1.0, high=2.0),
    Compile(T, 0, 1.5, "abc", SITE, 0),
    Compile(T, 0, None, "def", SITE, 1, True, (Input("x", (4, 8), "f32"),), 0, ("a", "b"), "input-shape", "why", "pad"),
)


def a_run(root: Path, *events: Event) -> Run:
    for rank in {event.rank for event in events}:
        (root / f"rank-{rank}.jsonl").write_bytes(b"".join(to_line(event) for event in events if event.rank == rank))
    return Run(root)


def test_steps_values_and_compiles(tmp_path: Path) -> None:
    frames = TrainResult(a_run(tmp_path, *EVENTS), {}).to_pandas()
    steps, values, compiles = frames
    assert steps.index.name == "step" and list(steps.index) == [2, 12]
    assert list(steps.columns) == ["time", "n", "seconds", "step_seconds", "compiled"]
    assert list(steps.step_seconds) == [0.5, 0.1] and list(steps.compiled) == [1, 0]
    assert steps.time.iloc[0] == pandas.Timestamp(T, unit="s", tz="UTC")
    assert values.index.name == "step" and list(values.index) == [1, 2, 12]
    assert list(values.columns) == ["loss", "lr", "phase"]
    assert values.loss[1] == 2.5 and pandas.isna(values.loss[2]) and values.loss[12] == 1.0
    assert values.phase[2] == "warm" and pandas.isna(values.lr[2])
    assert frames.values["loss"].dtype == float, "nan is a number again"
    assert list(compiles.recompile) == [False, True] and list(compiles.cause) == ["", "input-shape"]
    second = compiles.iloc[1]
    assert (second.path, second.line, second.difference, second.inputs) == ("In [3]", 14, "a\nb", "x f32[4, 8]")
    assert pandas.isna(second.seconds) and "rank" not in compiles.columns
    html = frames._repr_html_()
    assert html.count("<table") == 3 and "<b>compiles</b>" in html


def test_ranks_are_chosen(tmp_path: Path) -> None:
    run = a_run(tmp_path, *EVENTS, Value(T, 1, "loss", 9.0, 1), Value(T, 3, "loss", 7.0, 1), Compile(T, 3))
    every = run.to_pandas(None)
    assert every.values.index.names == ["rank", "step"] and every.values.loss[1, 1] == 9.0
    assert every.steps.index.names == ["rank", "step"] and list(every.compiles["rank"]) == [0, 0, 3]
    assert list(run.to_pandas([1, 3]).values.loss) == [9.0, 7.0]
    assert list(run.to_pandas(3).values.index) == [1]
    with pytest.raises(TpuMagicsError, match="has no rank 2") as refused:
        run.to_pandas(2)
    assert "Its ranks are 0, 1, 3." in str(refused.value)


def test_a_run_without_records_has_empty_frames(tmp_path: Path) -> None:
    for run in (Run(tmp_path), a_run(tmp_path, Start(T, 0))):
        for rank in (0, None):
            frames = run.to_pandas(rank)
            assert [len(frame) for frame in frames] == [0, 0, 0]
            assert "loss" not in frames.values.columns and "seconds" in frames.steps.columns


def test_what_is_not_read_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, *EVENTS, *(Value(T, 0, f"n{at}", at, at) for at in range(100)))
    with pytest.warns(UserWarning, match="Rank 0 logged 39 more names, which are left out") as told:
        assert len(run.to_pandas().values.columns) == 64
    assert told[0].filename == __file__
    monkeypatch.setattr(reader, "MOST_READ", 2_000)
    with pytest.warns(UserWarning, match=r"rank-0.jsonl was read in part: 0.001 MB at each end"):
        frames = run.to_pandas()
    assert 3 < len(frames.values.columns) < 64 and "n99" in frames.values.columns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "small").mkdir()
        a_run(tmp_path / "small", *EVENTS).to_pandas()


def test_times_and_steps_of_any_size_are_no_error(tmp_path: Path) -> None:
    frames = a_run(tmp_path, Steps(1e300, 0, total=2**63, n=1), Value(-1e18, 0, "a", 2**60, 2**63)).to_pandas()
    assert pandas.isna(frames.steps.time.iloc[0]) and frames.values.a.iloc[0] == 2**60


def test_without_pandas_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TpuMagicsError) as refused:
        a_run(tmp_path, *EVENTS).to_pandas()
    assert refused.value.what == "to_pandas() needs pandas, which is not installed here."
    assert refused.value.todo.startswith("Install it with: %pip install pandas.")
