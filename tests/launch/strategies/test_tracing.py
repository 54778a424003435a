"""The road of a function that is traced: the notebook's process is afterwards as it was before, whatever the function
did, and the next cell trains."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.traced import traced
from tests.launch.launching import digest, error_of, interrupt_when, run
from tpu_magics.errors import TrainingInterrupted
from tpu_magics.launch import session
from tpu_magics.preflight.pipeline import HostTooSmall
from tpu_magics.runs import temporary_folders

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
shared: list[Any] = []  # models that a function finds in its module


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)


def trains(model: Any, steps: int = 6) -> int:
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8).to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()
    return steps


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No folder, no run; what launchers may leave else, the tests' own conftest looks for."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.glob("tpu_magics-preflight-*")) and session.current.active_run is None
    assert not (tmp_path / "runs").exists() or not any("preflight" in p.name for p in (tmp_path / "runs").iterdir())


def test_the_notebook_is_as_before_and_the_next_cell_trains() -> None:
    model = net()
    model(torch.ones(2, 8)).sum().backward()  # a backward pass on the CPU
    before = digest(model)
    assert traced(trains, model).settled
    assert digest(model) == before and model.weight.device.type == "cpu"
    assert run(trains, model).value == 6 and digest(model) != before


def test_models_of_the_functions_module_and_closure() -> None:
    shared[:] = [net()]
    model = net()

    def both() -> None:
        trains(torch.nn.ModuleList([model, shared[0]])[0])

    assert "f32[4,8] weight" in traced(both).graphs[-1].parameters
    assert model.weight.device.type == shared[0].weight.device.type == "cpu"


def test_what_it_prints_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(model: Any) -> None:
        print("made of zeros")
        trains(model)

    traced(prints, net())
    assert "made of zeros" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        (lambda: (_ for _ in ()).throw(ValueError("wrong")), "raised ValueError: wrong"),
        (lambda: sys.exit(3), "called sys.exit(3)"),
        (lambda: os._exit(3), "exited before it finished (exit code 3)"),
        (lambda: os.kill(os.getpid(), 9), "SIGKILL"),
    ],
)
def test_a_function_that_ends_badly(ends: Any, what: str) -> None:
    model = net()
    before = digest(model)

    def fails(model: Any) -> None:
        trains(model, 1)
        ends()

    caught = error_of(traced, fails, model)
    assert what in caught.what and caught.what.startswith("fails failed during tracing: ")
    assert "%tpu_logs" not in str(caught) and digest(model) == before


@pytest.mark.parametrize(
    ("makes", "size"),
    [
        (lambda: torch.zeros(10**8, 512), "190.7 GiB"),
        (lambda: [torch.empty(2**28) for _ in range(10**4)], "1.0 GiB"),  # each of them would be granted
    ],
)
def test_more_memory_than_the_machine_has_is_refused_and_named(makes: Any, size: str) -> None:
    def large() -> None:
        makes()

    with pytest.raises(HostTooSmall) as caught:
        traced(large)
    assert "too little memory to trace large: Rank 0 could not allocate " + size in caught.value.what
    assert "machine's memory is too small, not the TPU's" in caught.value.why and "smaller batch" in caught.value.todo


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / "waits").touch()
        time.sleep(60)

    with interrupt_when((tmp_path / "waits").exists), pytest.raises(TrainingInterrupted):
        traced(waits)


def test_an_interrupt_as_the_folder_is_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make = temporary_folders.make_locked

    def interrupted() -> temporary_folders.LockedFolder:
        folder = make()
        signal.raise_signal(signal.SIGINT)
        return folder

    monkeypatch.setattr(temporary_folders, "make_locked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        traced(trains, net())


def test_an_interrupt_as_the_folder_is_removed_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = temporary_folders.LockedFolder.remove

    def interrupted(folder: temporary_folders.LockedFolder) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(folder)

    monkeypatch.setattr(temporary_folders.LockedFolder, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        traced(trains, net())


def test_the_steps_of_the_options() -> None:
    def grows(model: Any) -> None:
        device = torch_xla.device()
        model.to(device)
        for rows in range(1, 20):
            model(torch.randn(rows, 8).to(device)).sum().backward()
            torch_xla.sync()

    found = traced(grows, net(), steps=3)
    assert (found.syncs, found.settled, len(found.graphs)) == (3, False, 3) and found.changes
