"""A run that was ended at any moment goes on, and ends as the run that was never broken: to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers.trainer")  # here, as in a notebook: else every worker imports it

import torch

from tests import framework
from tests.launch.launching import failed, of, reap_orphans, refused, run, said, wait_until
from tests.launch.resume import programs
from tests.launch.resume.programs import FORMS, KILL, kill_at
from tpu_magics.checkpoints.lock import acquire
from tpu_magics.checkpoints.store import CheckpointStore, DiskPlace, open_place
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.results import TrainResult
from tpu_magics.launch.resume.notebook import with_checkpoint
from tpu_magics.runs.events import Compile, Resumed, Value
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.owner import process_started
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session"), pytest.mark.timeout(280)]

WHO = ("self", "all", "kernel")


@pytest.fixture(autouse=True)
def _initialised(fresh_session: session.Session) -> None:
    session.initialise()  # seeds do not start the runtime here


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where this session keeps checkpoints, from now on."""
    session.current.checkpoints = str(tmp_path / "place")
    yield tmp_path / "place"


def outcome(form: str, tmp_path: Path, **options: Any) -> tuple[Any, str, TrainResult]:
    """What a run returns, a checksum of the weights, and the run."""
    model = programs.begin()
    done = run(FORMS[form][0], model, *programs.arguments(form, tmp_path / "output"), **options)
    content = b"".join(one.detach().numpy().tobytes() for one in model.state_dict().values())
    return done.value, hashlib.sha256(content).hexdigest(), done


def logged(done: TrainResult) -> list[tuple[str, int, Any]]:
    """The logged values of rank 0."""
    found = [one for one in done.run.events("value", 0) if isinstance(one, Value)]
    timed = ("runtime", "second")  # a Trainer logs how fast it was
    return [(one.name, one.step, one.value) for one in found if not any(part in one.name for part in timed)]


def graphs(done: TrainResult) -> set[str]:
    """That rank 0 compiled."""
    return {one.graph for one in done.run.events("compile", 0) if isinstance(one, Compile)}


def unbroken(form: str, tmp_path: Path, **options: Any) -> tuple[Any, str, TrainResult]:
    place, session.current.checkpoints = session.current.checkpoints, ""
    try:
        return outcome(form, tmp_path, **options)
    finally:
        session.current.checkpoints = place


def leg(form: str, tmp_path: Path, kill: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """A run that goes on from what there is, and is ended as `kill` says; what `outcome` gives if it is not."""
    monkeypatch.setenv(KILL, kill)
    every = options.pop("save_every", 3)
    if kill.split()[1] != "kernel":
        try:
            return outcome(form, tmp_path, resume=True, save_every=every, **options)
        except TpuMagicsError as error:
            assert "was killed" in error.what or "SIG" in said(error) or "interrupted" in error.what, said(error)
            return None
    child = os.fork()  # stands for the kernel
    if child == 0:
        os.setpgid(0, 0)
        code = 3
        try:
            session.initialise()
            outcome(form, tmp_path, resume=True, save_every=every, **options)
            code = 0
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (-signal.SIGKILL, 0)
    if ended:
        reap_orphans()
    return None


def readable(place: Path, name: str, folder: Path) -> int:
    """The step of the newest checkpoint, none of which is damaged; 0 if there is none."""
    told: list[str] = []
    if not (place / name).exists():
        return 0
    folder.mkdir(exist_ok=True)
    found = CheckpointStore(open_place(str(place / name))).newest(folder, told.append)
    assert not told
    return found[0].manifest.step if found is not None else 0


@pytest.mark.parametrize("form", FORMS)
def test_every_form_ends_as_the_unbroken_run(
    form: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, weights, whole = unbroken(form, tmp_path)
    steps = FORMS[form][1]
    assert leg(form, tmp_path, kill_at(steps * 2 // 3, saved=place), monkeypatch) is None
    monkeypatch.setenv(KILL, "")
    found, same, done = outcome(form, tmp_path, resume=True)
    assert (found, same) == (value, weights)
    assert logged(done) == logged(whole)
    assert done.steps == whole.steps
    assert graphs(done) <= graphs(whole), "the first step after a resume compiles no graph of its own"
    resumed = done.run.events("resumed", 0)
    assert len(resumed) == 1
    assert place.exists()
    assert not (done.run.path / "resume").exists()


def test_two_ranks_save_at_the_same_item(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value, weights, _ = unbroken("accelerate", tmp_path, processes=2)
    assert leg("accelerate", tmp_path, kill_at(17, saved=place), monkeypatch, processes=2) is None
    monkeypatch.setenv(KILL, "")
    found, same, done = outcome("accelerate", tmp_path, resume=True, processes=2)
    assert (found, same) == (value, weights)
    newest = sorted((place / "accelerated").iterdir())[-1]
    manifest = json.loads(json.loads((newest / "manifest.json").read_text())["manifest"])
    sizes = {name: one["size"] for name, one in manifest["files"].items()}
    assert {"rank-0.json", "rank-1.json"} <= set(sizes)
    assert sizes["rank-1.safetensors"] < sizes["rank-0.safetensors"], "what is the same on all ranks is saved once"
    assert done.run.events("resumed", 0)


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_and_says_what_that_means(
    before: int,
    now: int,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """On TorchTPU, accelerate puts a DistributedDataParallel around the model of several ranks, and of one rank not."""
    assert leg("accelerate", tmp_path, kill_at(17, saved=place), monkeypatch, processes=before) is None
    monkeypatch.setenv(KILL, "")
    capfd.readouterr()
    value, _, _ = outcome("accelerate", tmp_path, resume=True, processes=now)
    assert f"saved by {before} ranks, and now there are {now}: the data are divided anew" in capfd.readouterr().out
    assert len(value[0]) == 4
    assert place.exists()


def test_a_run_that_was_killed_starts_again_by_itself(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, weights, _ = unbroken("plain", tmp_path)
    died = tmp_path / "died"

    def dies_twice(step: int) -> None:
        times = len(died.read_text()) if died.exists() else 0
        if (times, step) in ((0, 14), (1, 25)):
            died.write_text("x" * (times + 1))
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(programs, "may_die", dies_twice)
    found, same, done = outcome("plain", tmp_path, save_every=3, retries=2)
    assert (found, same) == (value, weights)
    assert len(done.run.events("resumed", 0)) == 1
    assert place.exists()


def test_an_error_of_the_code_is_not_tried_again(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(model: Any) -> None:
        raise ValueError("a mistake")

    assert "a mistake" in failed(fails, programs.begin(), retries=3).what
    assert "Starting again" not in capfd.readouterr().out
    assert not list(place.glob("*/step*"))


def test_an_error_of_the_code_waits_for_the_save_that_is_being_written(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = DiskPlace.put

    def slow_put(self: DiskPlace, name: str, files: Any, manifest: bytes) -> None:
        time.sleep(1)
        original(self, name, files, manifest)

    def fails(step: int) -> None:
        if step == 4:
            raise ValueError("a mistake")

    monkeypatch.setattr(DiskPlace, "put", slow_put)
    monkeypatch.setattr(programs, "may_die", fails)
    failed(programs.plain, programs.begin(), save_every=3)
    assert readable(place, "plain", tmp_path / "read") == 3


def chain(form: str, seed: int, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """A run that is ended again and again, until it is done. Returns how often it was ended."""
    numbers = random.Random(seed)
    value, weights, _ = unbroken(form, tmp_path, **options)
    name = FORMS[form][0].__name__
    at, kills = 0, 0
    while True:
        at = min(at + numbers.randint(1, 6), FORMS[form][1] + 1)
        done = leg(
            form,
            tmp_path,
            kill_at(at, numbers.choice(WHO)),
            monkeypatch,
            save_every=numbers.choice((1, 2, 3)),
            **options,
        )
        saved = readable(place, name, tmp_path / f"read-{kills}")
        if done is not None:
            assert (done[0], done[1]) == (value, weights)
            return kills
        kills += 1
        at = max(at, saved)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_that_is_killed_again_and_again(
    seed: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chain("plain", seed, tmp_path, place, monkeypatch) > 4


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", FORMS)
def test_many_kills(form: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, kills, seed = (20 if form == "trainer" else 60), 0, 100
    while kills < most:
        kills += chain(form, seed, tmp_path, place, monkeypatch)
        seed += 1
        shutil.rmtree(place)
    print(f"{form}: {kills} kills")


def test_killed_in_the_middle_of_a_save(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the rename: the checkpoint before stays the newest."""
    value, weights, _ = unbroken("plain", tmp_path)
    original = DiskPlace.put
    saves, saved = tmp_path / "saves", tmp_path / "saved"

    def put(self: DiskPlace, name: str, files: Any, manifest: bytes) -> None:
        with saves.open("a") as file:
            file.write(f"{name}\n")
        if len(saves.read_text().split()) == 3:
            (self.folder / f".unfinished-{name}").mkdir()
            os.kill(os.getpid(), 9)
        original(self, name, files, manifest)
        saved.write_text(saves.read_text())

    def waits_for_the_save(_step: int) -> None:
        """Else a slow disk would still have the one before when the next is due."""
        wait_until(lambda: not saves.exists() or (saved.exists() and saved.read_text() == saves.read_text()))

    with monkeypatch.context() as patch:
        patch.setattr(DiskPlace, "put", put)
        patch.setattr(programs, "may_die", waits_for_the_save)
        error = failed(programs.plain, programs.begin(), save_every=4)
    second = int(saves.read_text().split()[1].split("-")[1])
    assert f"step {second}: --resume" in said(error)
    assert readable(place, "plain", tmp_path / "read") == second
    found, same, _ = outcome("plain", tmp_path, resume=True)
    assert (found, same) == (value, weights)
    assert not list((place / "plain").glob(".unfinished*"))


# -- what is told -----------------------------------------------------------------------------------------------------


def test_a_full_place_does_not_end_the_training(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = DiskPlace.put
    tries = [0]

    def put(self: DiskPlace, name: str, files: Any, manifest: bytes) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError(28, "No space left on device")
        original(self, name, files, manifest)

    monkeypatch.setattr(DiskPlace, "put", put)
    value, _, done = outcome("plain", tmp_path, save_every=4)
    assert value is not None
    told = warnings(done.run, "not-saved")
    assert len(told) == 2
    assert f"No space left on device ({place / 'plain'})" in told[0] and "step 4" in told[0]
    assert told[1].startswith("Saved again: ") and "2 checkpoints" in told[1]
    assert readable(place, "plain", tmp_path / "read") >= 12


def warnings(run_: Run, code: str) -> list[str]:
    return [one.text for one in run_.events("warning", 0) if one.code == code]  # type: ignore[attr-defined]


def endless(model: Any) -> None:
    """A training that nothing can be saved of, in a `while` loop; killed in its first step but one."""
    device = framework.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = iter(torch.utils.data.DataLoader(programs.data(), batch_size=4))
    while programs.counter["steps"] < 5:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        programs.loss_of(model, inputs.to(device), targets.to(device)).backward()
        optimizer.step()
        framework.sync()
        programs.counter["steps"] += 1
        programs.may_die(programs.counter["steps"])


def test_a_training_that_cannot_be_saved_says_so_at_its_first_step(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KILL, kill_at(2))  # the other loops of the module that it uses are none of its own
    error = failed(endless, programs.begin(), save_every=1)
    (told,) = warnings(of(error), "no-loop")
    assert told.startswith("No checkpoint can be saved now: the training runs outside of the loops, of which none was ")
    assert "Not found: `while programs.counter['steps'] < 5` (line " in told and "resumable" in told
    assert "has saved no checkpoint" in error.todo
    assert not list(place.glob("*/step*"))


def test_a_later_attempt_that_saved_nothing_tells_of_the_checkpoint_that_is_there(tmp_path: Path) -> None:
    folder = RunFolder.create("train", cwd=tmp_path)
    writer = EventWriter(RunFiles(folder.path).events_path(0), 0)
    writer.write(Resumed(t=time.time(), rank=0, step=15))
    writer.close()
    error = TpuMagicsError("It died.", "", "Run it again.")
    with_checkpoint(error, folder)
    assert error.todo == "Run it again. The newest checkpoint is of step 15: --resume goes on from there."


def test_a_place_that_another_kernel_uses(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is refused, while its process is there; its notes are left alone."""
    taken = acquire(open_place(str(place / "plain")), "theirs", print)
    monkey = replace(taken.owner, pid=os.getppid(), started=process_started(os.getppid()))
    taken.place.write_note(".lock-1", monkey.text())
    error = refused(programs.plain, programs.begin())
    assert "Another run saves its checkpoints in" in error.what and "the run theirs on" in error.why
    assert "--run-name" in error.todo
    assert taken.place.read_note(".lock-1") == monkey.text()
    taken.place.write_note(".lock-1", replace(monkey, pid=2**22 + 1).text())  # no process has that number
    assert run(programs.plain, programs.begin(), 1).value is not None
    assert taken.place.notes(".lock-") == []


def test_a_changed_training_is_refused_with_a_table(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leg("plain", tmp_path, kill_at(20, saved=place), monkeypatch) is None
    monkeypatch.setenv(KILL, "")
    error = failed(programs.plain, programs.begin(), kwargs={"epochs": 4}, resume=True)
    assert "was changed since its checkpoint" in error.what
    assert "plain: epochs: 3 -> 4" in said(error)
    assert "--force" in error.todo
    done = run(programs.plain, programs.begin(), kwargs={"epochs": 4}, resume=True, force=True)
    assert done.value[2] == 48
    assert place.exists()


def test_another_model_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert leg("plain", tmp_path, kill_at(20, saved=place), monkeypatch) is None
    monkeypatch.setenv(KILL, "")
    programs.begin()
    error = failed(programs.plain, torch.nn.Linear(8, 1), resume=True)
    assert "does not fit" in error.what
    assert "there is no model.0" in error.why
    error = failed(programs.plain, torch.nn.Sequential(*programs.begin()[:3], torch.nn.Linear(16, 2)), resume=True)
    assert "model.3.weight: it has the shape [2, 16] here, and had [1, 16] at the checkpoint" in error.why
    assert place.exists()


def test_a_training_without_a_place_for_checkpoints() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        run(programs.plain, programs.begin(), resume=True)
    assert "%tpu_init --checkpoints" in caught.value.todo


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        session.initialise(checkpoints="/proc/nothing")
    assert "cannot be written" in caught.value.what


@pytest.mark.parametrize("every", ["0", "5x", "-1", "m"])
def test_a_time_between_saves_that_is_none(every: str, place: Path) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        run(programs.plain, programs.begin(), save_every=every)
    assert "--save-every" in caught.value.what
    assert not (place / "plain").exists()
