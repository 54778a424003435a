"""On the hosts of a cluster: a run saves through its place, also before it is stopped, and starts again after a worker
was killed or a host was lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import tpu_magics
from tests.launch.launching import error_of, failed, of, run, said, wait_until
from tests.launch.pods.clusters import Nodes
from tpu_magics.errors import TpuMagicsError, TrainingInterrupted
from tpu_magics.launch import session, train
from tpu_magics.launch.options import Options
from tpu_magics.launch.plan import PER_WORKER
from tpu_magics.launch.pods import host_selection
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.results import TrainResult
from tpu_magics.launch.run import TrainingRun
from tpu_magics.magics import runs_commands
from tpu_magics.runs.events import Resumed, Saved, Value, only
from tpu_magics.runs.reader import Run

pytestmark = [pytest.mark.process, pytest.mark.timeout(280)]


def trains(model: Any, folder: str, dies: int = 0, pause: float = 0.0, steps: int = 20) -> Any:
    """Ranks that average their gradients. Rank 3 gets this signal at its 13th step, once."""
    rank, device = xr.global_ordinal(), torch_xla.device()
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    total = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.rand(4, 8, generator=generator).to(device)).pow(2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        total += loss.item()
        tpu_magics.log(loss=loss.item())
        mark = Path(folder, "killed")
        if dies and rank == 3 and step == 12 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), dies)
        if pause:
            Path(folder, f"step-{step}").touch()
            time.sleep(pause)
    return total


STEPS = 40  # of the runs that are stopped
GOING = {"pause": 0.15, "steps": STEPS}


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def same(model: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def saved(run: Run) -> list[int]:
    return [one.step for one in only(run.events("saved", 0), Saved)]


def resumed(run: Run) -> list[int]:
    return [one.step for one in only(run.events("resumed", 0), Resumed)]


def test_a_killed_worker_is_made_up_for(pod: session.Session, tmp_path: Path) -> None:
    untouched, model = net(), net()
    whole = run(trains, untouched, str(tmp_path), processes=4)
    pod.checkpoints = str(tmp_path / "place")
    again = run(trains, model, str(tmp_path), signal.SIGKILL, save_every=5, retries=1, processes=4)
    assert again.values == whole.values
    assert same(model, untouched)
    assert resumed(again.run)[0] in (5, 10)
    assert saved(again.run)
    names = sorted(one.name for one in (tmp_path / "place" / "trains").glob("step-*"))
    assert len(names) == 2
    assert (tmp_path / "place" / "trains" / names[-1] / "rank-3.json").exists()


# -- stopped from the notebook ----------------------------------------------------------------------------------------


@contextmanager
def after_step(folder: Path, step: int, action: Any) -> Iterator[None]:
    """Do it in another thread, as soon as a step is done."""

    def wait() -> None:
        wait_until(lambda: (folder / f"step-{step}").exists(), 90)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def saved_at_its_end(stopped: Run) -> int:
    """The step of its only checkpoint, which is its last step."""
    [step] = saved(stopped)
    assert 3 < step < STEPS
    for rank in range(4):
        assert max(one.step for one in only(stopped.events("value", rank), Value)) == step
    return step


def is_as_unbroken(done: TrainResult, model: Any, folder: Path) -> None:
    session.current.checkpoints = ""
    untouched = net()
    assert done.values == run(trains, untouched, str(folder), kwargs={"steps": STEPS}).values
    assert same(model, untouched)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_is_saved_where_it_stopped(
    pod: session.Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pod.checkpoints = str(tmp_path / "place")
    with after_step(tmp_path, 4, interrupt), pytest.raises(TrainingInterrupted) as caught:
        run(trains, net(), str(tmp_path), kwargs=GOING)
    assert "saving a checkpoint before the run stops (a second stop skips it)" in capfd.readouterr().out
    step = saved_at_its_end(of(caught.value))
    assert f"The newest checkpoint is of step {step}: --resume goes on from there." in said(caught.value)
    model = net()
    again = run(trains, model, str(tmp_path), kwargs=GOING, resume=True)
    assert resumed(again.run) == [step]
    is_as_unbroken(again, model, tmp_path)


def in_background(tmp_path: Path, **options: Any) -> tuple[TrainResult, TrainingRun]:
    result = run(trains, net(), str(tmp_path), kwargs=GOING, background=True, **options)
    going = session.current.active_run
    assert going is not None
    wait_until(lambda: (tmp_path / "step-4").exists(), 90)
    return result, going


def test_tpu_stop_saves_first(pod: session.Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pod.checkpoints = str(tmp_path / "place")
    result, _ = in_background(tmp_path)
    runs_commands.stop(None, save=True)
    step = saved_at_its_end(result.run)
    assert f"it was saved at step {step}, and goes on from there with --resume" in capfd.readouterr().out


def test_a_save_that_is_asked_for_does_not_end_the_run(pod: session.Session, tmp_path: Path) -> None:
    pod.checkpoints = str(tmp_path / "place")
    result, going = in_background(tmp_path)
    going.save()
    wait_until(lambda: bool(saved(result.run)), 30)
    first = saved(result.run)
    going.save()
    assert len(result.wait().values) == 4
    assert first == saved(result.run)[:1] and len(saved(result.run)) == 2


def test_a_worker_that_is_ended_from_outside_saves_with_all_others(pod: session.Session, tmp_path: Path) -> None:
    """A SIGTERM to a worker of one host, as before a preemption."""
    pod.checkpoints = str(tmp_path / "place")
    kwargs = {**GOING, "dies": signal.SIGTERM}
    error = failed(trains, net(), str(tmp_path), kwargs=kwargs)
    assert "a worker got a SIGTERM" in error.what
    saved_at_its_end(of(error))


# -- a lost host ------------------------------------------------------------------------------------------------------


def start_again(tmp_path: Path, model: Any, **options: Any) -> TrainResult:
    request = train.function_request(trains, (model, str(tmp_path)), GOING)
    return train.start(request, Options(hoist="off", save_every=3, retries=1, timeout=200.0, **options))


def test_a_lost_host_is_made_up_for(
    nodes: Nodes, fresh_session: session.Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On those that are left, with as many ranks: it ends as if none had been lost."""
    fresh_session.checkpoints = str(tmp_path / "place")
    model = net()
    with nodes.added("gamma") as victim:
        fresh_session.pod = nodes.pod("alpha", victim)
        with after_step(tmp_path, 7, lambda: nodes.kill(victim)):
            again = start_again(tmp_path, model)
    told = capfd.readouterr().out
    assert f"Host {victim} (ranks 2 and 3) was lost during the run. Starting again" in told, told
    assert "The hosts are now alpha, beta, with 4 ranks together." in told
    assert "the data are divided anew" not in told
    assert resumed(again.run)[0] in (3, 6, 9)
    is_as_unbroken(again, model, tmp_path)


@pytest.mark.long
def test_hosts_that_cannot_have_as_many_ranks_have_fewer(
    nodes: Nodes, fresh_session: session.Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fresh_session.checkpoints = str(tmp_path / "place")
    model = net()
    with nodes.added("gamma") as victim:
        fresh_session.pod = nodes.pod(workers=1)
        with after_step(tmp_path, 7, lambda: nodes.kill(victim)):
            again = start_again(tmp_path, model, processes=3)
    told = capfd.readouterr().out
    assert "The hosts are now alpha, beta, with 2 ranks together." in told, told
    assert "It was saved by 3 ranks, and now there are 2: the data are divided anew" in told
    assert len(again.values) == 2
    assert max(one.step for one in only(again.run.events("value", 0), Value)) == STEPS


def test_hosts_that_come_back_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TPU slice needs all of its hosts: it is not replaced by a rehearsal on the CPUs of those that are left."""
    before = Pod("10.0.0.1:6379", (PodHost(0, "a", "", ""),), device="TPU", target="v5litepod-8")
    answers = [TpuMagicsError("This cluster has no TPU slice."), replace(before, device="CPU"), before]

    def find(*_: Any) -> Pod:
        found = answers.pop(0)
        if isinstance(found, Pod):
            return found
        raise found

    told: list[str] = []
    monkeypatch.setattr(host_selection, "find_pod", find)
    monkeypatch.setattr(host_selection, "COME_BACK_POLL", 0)
    assert host_selection.find_again(before, 8, None, told.append) is before
    assert told == ["This cluster has no TPU slice. Waiting up to 10 minutes for hosts to come back."]
    answers.append(replace(before, device="CPU"))
    monkeypatch.setattr(host_selection, "COME_BACK_SECONDS", -1)
    error = error_of(host_selection.find_again, before, 8, None, told.append)
    assert error.what == "This cluster has no v5litepod-8 any more." and "--resume" in error.todo


@pytest.mark.parametrize(
    ("ranks", "memory", "each"), [(4, None, 2), (5, None, 2), (1, None, 1), (4, PER_WORKER * 3 // 2, 1)]
)
def test_as_many_ranks_as_the_hosts_can_have(ranks: int, memory: int | None, each: int) -> None:
    hosts = tuple(PodHost(number, f"w{number}", "", f"10.0.0.{number}", memory=memory) for number in range(2))
    told: list[str] = []
    assert host_selection._with_most_ranks(Pod("", hosts), ranks, told.append).workers == each
    assert bool(told) == (memory is not None)
