"""A run as event files, read back record by record."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

import tpu_magics
from tests.launch.launching import wait_until
from tests.panel import recorded
from tests.panel.event_files import read_back
from tpu_magics.backends import summary_writer
from tpu_magics.errors import TpuMagicsError
from tpu_magics.panel.tensorboard import EventFiles, check_folder, event_files, to_tensorboard
from tpu_magics.runs.events import Compile, Event, Steps, Value
from tpu_magics.runs.reader import Run

T = recorded.CREATED


def a_run(root: Path, *events: Event, name: str = "digits", status: str = "done") -> recorded.Recorded:
    made = recorded.Recorded(root, name, **(recorded.myself() if status == "running" else {}))
    made.update(status=status)
    return made.write(*events)


EVENTS = (
    Value(T + 1, 0, "loss", 2.5, 1),
    Value(T + 2, 0, "loss", 2.0, 2),
    Value(T + 2, 0, "train/lr", 0.5, 2),
    Value(T + 3, 0, "loss", "nan", 3),
    Value(T + 3, 0, "phase", "warm <b>up</b>", 3),
    Steps(T + 3, 0, total=3, n=3, seconds=2.5, compiled=1, compiled_seconds=2.25),
    Compile(T + 1, 0, 2.0, nth=0),
    Compile(T + 2, 0, None, nth=1, recompile=True, cause="optimizer-state", step=1),
    Compile(T + 3, 0, 1.0, nth=2, recompile=True, cause="input-shape", step=2),
)


def test_what_was_logged_has_its_step_and_its_time(tmp_path: Path) -> None:
    run = Run(a_run(tmp_path / "runs", *EVENTS).files.path)
    folder = tpu_magics.to_tensorboard(run, tmp_path / "tb")
    assert folder == tmp_path / "tb" / run.id
    found = read_back(folder)
    assert found["loss"][:2] == [(1, T + 1, 2.5), (2, T + 2, 2.0)]
    assert found["loss"][2][0] == 3 and found["loss"][2][2] != found["loss"][2][2], "nan"
    assert found["train/lr"] == [(2, T + 2, 0.5)]
    assert found["tpu_magics/step_seconds"] == [(3, T + 3, 0.125)]
    assert found["tpu_magics/compiles"] == [(0, T + 1, 1), (1, T + 2, 2), (2, T + 3, 3)]
    assert found["tpu_magics/recompiles"] == [(2, T + 3, 1)], "one that every program has is not counted"
    assert found["tpu_magics/compile_seconds"] == [(0, T + 1, 2.0), (2, T + 3, 1.0)]
    [(step, _time, text)] = found["phase/text_summary"]
    assert step == 3 and text == "warm &lt;b&gt;up&lt;/b&gt;"
    [(_step, _time, summary)] = found["tpu_magics/run/text_summary"]
    assert isinstance(summary, str) and "| steps | 3 |" in summary and "| last loss |" in summary
    assert not [each for each in folder.iterdir() if each.is_dir()]


def test_a_rank_that_differs_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Rank 1 has the averaged loss of all; rank 2 another one from its second step on; rank 3 logs what 0 does not."""
    losses = [Value(T + at, rank, "loss", 1.0 / (at + 1), at) for rank in (0, 1) for at in range(3)]
    own = [Value(T + at, 2, "loss", 1.0 + (at > 0), at) for at in range(3)]
    only = [Value(T, 3, "samples", 7, 0), Value(T, 3, "loss", 1.0, 0)]
    folder = to_tensorboard(Run(a_run(tmp_path, *losses, *own, *only).files.path), tmp_path / "tb")
    assert {each.name for each in folder.iterdir() if each.is_dir()} == {"rank-2", "rank-3"}
    assert [value for _step, _time, value in read_back(folder / "rank-2")["loss"]] == [1.0, 2.0, 2.0]
    assert read_back(folder / "rank-3") == {"samples": [(0, T, 7.0)]}
    assert len(read_back(folder)["loss"]) == 3


def test_a_run_that_goes_on_is_written_as_it_goes(tmp_path: Path) -> None:
    now = 0.0
    made = a_run(tmp_path, *EVENTS[:2], status="running")
    files = EventFiles(made.files, tmp_path / "tb", clock=lambda: now)
    before = set(threading.enumerate())
    assert not (tmp_path / "tb").exists(), "nothing is opened before the workers are forked"
    files.look()
    wait_for(files.folder, "loss", 2)
    made.write(Value(T + 9, 0, "loss", 1.0, 9))
    files.look()
    assert len(read_back(files.folder)["loss"]) == 2, "once a second"
    now = 1.0
    files.look()
    wait_for(files.folder, "loss", 3)
    files.settle()
    assert "tpu_magics/run/text_summary" not in read_back(files.folder), "the results are not loaded yet"
    made.update(status="done")
    made.write(Value(T + 10, 0, "loss", 0.5, 10))
    files.settle()
    files.settle()
    found = read_back(files.folder)
    assert [step for step, _time, _value in found["loss"]] == [1, 2, 9, 10]
    assert len(found["tpu_magics/run/text_summary"]) == 1
    wait_until(lambda: set(threading.enumerate()) <= before)


def wait_for(folder: Path, tag: str, count: int) -> None:
    """The writer's thread writes within a second."""
    wait_until(lambda: len(read_back(folder).get(tag, ())) == count)


def test_a_run_is_not_written_twice_into_the_same_folder(tmp_path: Path) -> None:
    run = Run(a_run(tmp_path, *EVENTS).files.path)
    to_tensorboard(run, tmp_path / "tb")
    with pytest.raises(TpuMagicsError, match="TensorBoard would show each of its points twice") as refused:
        to_tensorboard(run, str(tmp_path / "tb"))
    assert refused.value.what == f"The run {run.id} is in {tmp_path / 'tb'} already."
    other = Run(a_run(tmp_path, *EVENTS, name="other").files.path)
    assert to_tensorboard(other, tmp_path / "tb").parent == tmp_path / "tb", "several runs go into one folder"


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("gs://bucket/runs", "It is an address"),
        ("{file}", "It is not a folder."),
        ("{file}/x", "It is not a folder."),
        ("", "It is not a"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TpuMagicsError) as refused:
        check_folder(folder.format(file=tmp_path / "file"))
    assert refused.value.why.startswith(why) and (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_takes_nothing_is_an_error_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tpu_magics.panel.tensorboard.open_writer", full)
    with pytest.raises(TpuMagicsError, match="No space left on device"):
        to_tensorboard(Run(a_run(tmp_path, *EVENTS).files.path), tmp_path / "tb")


def test_records_of_any_origin_are_written_as_far_as_they_go(tmp_path: Path) -> None:
    names = [Value(T, 0, f"name {at}", at, at) for at in range(200)]
    made = a_run(tmp_path, *names, Value(1e300, 0, "name 1", 1e308, 2**62), Value(T, 0, "", 1, 1))
    with made.files.events_path(0).open("ab") as file:
        file.write(b'{"v":1,"kind":"value"\n\xff\xfe\n' + b"x" * 100_000)
    found = read_back(to_tensorboard(Run(made.files.path), tmp_path / "tb"))
    assert 60 <= len(found) <= 70 and len(found["name_1"]) == 2


# -- the writer --------------------------------------------------------------------------------------------------------


def test_where_nothing_writes_event_files_the_error_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_writer, "_is_installed", lambda name: name == "torch")
    for call in (lambda: to_tensorboard(Run(tmp_path), tmp_path), lambda: event_files(Run(tmp_path), tmp_path)):
        with pytest.raises(TpuMagicsError) as refused:
            call()
        assert refused.value.what == "Nothing here writes TensorBoard's event files."
        assert "%pip install tensorboardX" in refused.value.todo


def test_pytorchs_writer_is_taken_where_the_other_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would import TensorFlow; while ours is opened it finds a module that says not to."""
    fake_torch_tensorboard = ModuleType("torch.utils.tensorboard")

    class FakeWriter:
        def __init__(self, folder: str, **options: int) -> None:
            self.folder = folder
            assert "tensorboard.compat.notf" in sys.modules

    fake_torch_tensorboard.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    for name in ("torch", "torch.utils"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake_torch_tensorboard)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(summary_writer, "_is_installed", lambda name: name in ("torch", "tensorboard"))
    writer = summary_writer.open_writer(tmp_path)
    assert isinstance(writer, FakeWriter) and writer.folder == str(tmp_path)
    assert "tensorboard.compat.notf" not in sys.modules
