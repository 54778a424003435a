"""What a host sends, and what is left there: actors as plain objects, and bad names."""

from __future__ import annotations

import errno
import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.launching import error_of
from tpu_magics.launch import session
from tpu_magics.launch.plan import Plan
from tpu_magics.launch.pods import cluster, host_start, payload
from tpu_magics.launch.pods.bundle import LARGE_BYTES
from tpu_magics.launch.pods.host_actor import CHUNK_BYTES, HostActor
from tpu_magics.launch.pods.host_start import CLOSED, error_text, submit
from tpu_magics.launch.pods.payload import pack_payload
from tpu_magics.launch.pods.pod import BUNDLE, LOG, HostTask, Pod, PodHost, is_result_file, is_streamed_file
from tpu_magics.launch.pods.remote_supervisor import Link, RemoteSupervisor, fetch_file, make_links
from tpu_magics.launch.resume import saving
from tpu_magics.launch.streams import NoScreen, Relay
from tpu_magics.launch.work import FunctionWork
from tpu_magics.runs import temporary_folders
from tpu_magics.runs.events import End
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.writer import EventWriter

HOSTS = tuple(PodHost(i, f"w{i}", "", "10.0.0.1") for i in range(2))


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostActor:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return HostActor("run-0")


@pytest.fixture
def watch(tmp_path: Path) -> RemoteSupervisor:
    """Of two hosts, whose actors are not called."""
    files = RunFiles(tmp_path / "run")
    files.path.mkdir()
    found = make_links(Pod("", HOSTS), [FakeActor(), FakeActor()])
    workers = [worker for link in found for worker in link.workers]
    return RemoteSupervisor(files, workers, Relay(files, NoScreen()), links=found)


class FakeActor:
    """In place of Ray's handle: records calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        class Method:
            @staticmethod
            def remote(*_: Any) -> None:
                self.calls.append(name)

        return Method


def deliver(actor: HostActor, watch: RemoteSupervisor, link: Link) -> list[list[str]]:
    """Poll until everything is sent: the names in each answer."""
    answers = []
    while news := actor.poll(link.offsets, 0)[0]:
        answers.append([name for name, _, _ in news])
        for one in news:
            watch._receive(link, one)
    return answers


# -- files of a host --------------------------------------------------------------------------------------------------


def test_a_display_that_is_larger_than_an_answer_is_there_before_its_event(
    actor: HostActor, watch: RemoteSupervisor
) -> None:
    text = json.dumps({"data": {"text/html": "x" * (2 * CHUNK_BYTES)}})
    (actor.folder / "display-0.json").write_text(text)
    (actor.folder / "rank-0.log").write_text("shown\n")
    (actor.folder / "rank-0.jsonl").write_text('{"kind":"display"}\n')
    answers = deliver(actor, watch, watch.links[0])
    assert [name in answer for answer in answers for name in ("rank-0.jsonl",)] == [False, False, True]
    for name in ("display-0.json", "rank-0.log", "rank-0.jsonl"):
        assert (watch.files.path / name).read_bytes() == (actor.folder / name).read_bytes()


def test_output_that_arrives_after_the_last_event_is_shown(tmp_path: Path) -> None:
    files, screen = RunFiles(tmp_path), Lines()
    relay = Relay(files, screen)
    files.log_path(0).write_text("first\n")
    EventWriter(files.events_path(0), 0).write(End(1.0, 0, status="done", seconds=1.0, steps=1, log_end=13))
    relay.pump()
    with files.log_path(0).open("a") as log:
        log.write("second\nnoise of the exit\n")
    relay.pump()
    relay.pump()
    assert screen.shown == "first\nsecond\n"


class Lines(NoScreen):
    shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def test_two_hosts_with_records_of_one_rank_lose_nothing(actor: HostActor, watch: RemoteSupervisor) -> None:
    """On a TPU a worker may get a rank whose number a worker of another host had at its start."""
    first, second = watch.links
    watch._receive(first, ("rank-1.log", 0, b"begins\n"))
    watch._receive(second, ("rank-1.log", 0, b"goes on\n"))
    watch._receive(second, ("rank-1.log", 8, b"ends\n"))
    assert (watch.files.path / "rank-1.log").read_bytes() == b"begins\ngoes on\nends\n"


def test_a_log_that_was_emptied_is_emptied_in_the_run_folder(actor: HostActor, watch: RemoteSupervisor) -> None:
    log = actor.folder / "rank-0.log"
    log.write_text("a long line\n")
    deliver(actor, watch, watch.links[0])
    log.write_text("new\n")
    deliver(actor, watch, watch.links[0])
    assert (watch.files.path / "rank-0.log").read_text() == "new\n"


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rank-0.jsonl", "supervisor.jsonl", "display-3.json", "rank-12.stacks", "host.log"])
def test_files_of_a_run(name: str) -> None:
    assert is_streamed_file(name)


@pytest.mark.parametrize("name", ["run.json", "../rank-0.log", "/etc/rank-0.log", "rank-/../../x.log", "", "x.py"])
def test_a_host_that_sends_another_file_is_lost(name: str, watch: RemoteSupervisor) -> None:
    link = watch.links[1]
    watch._receive(link, (name, 0, b"x"))
    assert repr(name) in link.lost and not list(watch.files.path.glob("*.log")) and not is_streamed_file(name)


@pytest.mark.parametrize("name", ["../result-x", "result-weights/../../x", "result-/..", "rank-0.log", "result-a//b"])
def test_results_are_in_the_run_folder(name: str, tmp_path: Path) -> None:
    assert (
        not is_result_file(name)
        and is_result_file("result-weights/model.safetensors")
        and is_result_file("result-value-0.pkl")
    )
    with pytest.raises(ValueError, match="not a result file of a run"):
        fetch_file(None, name, 1, tmp_path)


# -- saving -----------------------------------------------------------------------------------------------------------


def test_a_request_to_save_reaches_the_ranks_of_a_host(actor: HostActor, watch: RemoteSupervisor) -> None:
    scratch = temporary_folders.make_scratch(RunFiles(actor.folder))
    link = watch.links[1]
    link.state = actor.poll({}, 0)[1]
    assert not watch.can_save()
    (scratch / "save-begun").touch()
    actor.save(saving.STOP)
    assert (scratch / "save-stop").exists()
    link.state = actor.poll({}, 0)[1]
    assert link.state["saves_and_ends"] and watch.can_save()
    watch.links[0].lost = "its node died"
    assert not watch.can_save()
    temporary_folders.remove_scratch(RunFiles(actor.folder))


def test_a_host_that_saves_and_ends_tells_all_others_once(
    watch: RemoteSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(watch, "_exchange", lambda: None)
    monkeypatch.setattr(watch, "ask_to_save", asked.append)
    watch.look()
    assert asked == []
    watch.links[1].state = {"saves_and_ends": True}
    watch.look()
    watch.look()
    assert asked == [saving.STOP]


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_the_notebook_ends_the_run_and_frees_the_hosts(
    watch: RemoteSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    dismissed: list[Any] = []
    monkeypatch.setattr("tpu_magics.launch.pods.remote_supervisor.close_actors", lambda made, _: dismissed.extend(made))
    monkeypatch.setattr(watch, "_exchange", lambda: None)
    for link in watch.links:
        link.state = {"exit": 0}
    monkeypatch.setattr(watch, "_write_chunk", full)
    watch._receive(watch.links[0], ("rank-0.log", 0, b"x"))
    watch._go_on()
    assert watch.reason == "collect" and watch.unwritten is not None
    monkeypatch.setattr(watch.relay, "pump", full)
    with pytest.raises(OSError, match="No space left"):
        watch.end()
    assert dismissed == [link.actor for link in watch.links]


def test_a_host_with_a_full_disk_is_named() -> None:
    host_start._require_disk(HOSTS, [2 * 10**9, None], 10**9)
    error = error_of(host_start._require_disk, HOSTS, [10**10, 10**9], 10**9)
    assert error.what.startswith("Not enough disk on w1 for the data of this run (2,000 MB")
    assert "1,000 MB free" in error.why and "TMPDIR" in error.todo


def test_actors_clean_up_before_they_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    made, ended = [FakeActor(), FakeActor()], []
    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    monkeypatch.setattr(ray, "wait", lambda asked, **_: ended.append(len(asked)))
    monkeypatch.setattr(ray, "kill", ended.append)
    host_start.close_actors(made, 0.1)
    assert [one.calls for one in made] == [["close"], ["close"]] and ended == [2, *made]


def test_without_a_connection_no_actor_is_called(watch: RemoteSupervisor) -> None:
    """Ray would start a new cluster for the call, with a dashboard."""
    import ray

    host_start.close_actors([link.actor for link in watch.links], 0.1)
    watch._exchange()
    with pytest.raises(ConnectionError) as error:
        submit(None)
    assert [one.lost for one in watch.links] == [error_text(error.value)] * 2 == [CLOSED] * 2
    assert all(one.actor.calls == [] for one in watch.links) and not ray.is_initialized()


def test_an_exit_that_ray_raises_while_the_connection_is_closed_ends_no_thread(
    watch: RemoteSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with Ray 2.60: a thread that calls Ray while another one calls ray.shutdown() gets SystemExit(0)."""
    import ray

    def closes(*_: Any, **__: Any) -> Any:
        raise SystemExit(0)

    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    for link in watch.links:
        link.pending = object()
    monkeypatch.setattr(ray, "wait", closes)
    watch._exchange()
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", closes)
    watch._exchange()
    assert [link.lost for link in watch.links] == [CLOSED] * 2


def test_closing_leaves_nothing(actor: HostActor, tmp_path: Path) -> None:
    (actor.folder / "array-0.bin").write_bytes(b"x")
    actor.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_next_actor_removes_what_a_killed_one_left(actor: HostActor, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the files of a running one, nor of another machine that shares the folder."""
    dead, far = HostActor("dead").folder, HostActor("far").folder
    (dead / temporary_folders.OWNER).write_text(f"{os.getpid()} 1 {temporary_folders._machine()}")
    (far / temporary_folders.OWNER).write_text(f"{os.getpid()} 1 another/pid:[1]")
    HostActor("next")
    assert not dead.exists() and far.exists() and actor.folder.exists()


def test_a_folder_that_others_can_change_is_not_used(actor: HostActor, tmp_path: Path) -> None:
    mine = actor.folder.parent.parent
    assert mine == tmp_path / f"tpu_runs-{os.getuid()}" and mine.stat().st_mode & 0o077 == 0
    mine.chmod(0o777)
    assert mine not in HostActor("next").folder.parents


def test_the_error_of_an_actor_that_could_not_start() -> None:
    """With Ray's own errors (2.60)."""
    ray: Any = import_module("ray.exceptions")
    cause = OSError(errno.ENOSPC, "No space left on device")
    failed = ray.RayTaskError("HostActor.__init__", f"Traceback\nOSError: {cause}", cause, actor_id="ab")
    assert "No space left on device" in error_text(ray.ActorDiedError(failed))
    assert error_text(ray.ActorDiedError()) == "its process died"


# -- a whole host, without Ray ----------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_host_trains_from_its_bundle_and_leaves_nothing(
    tmp_path: Path,
    actor: HostActor,
    watch: RemoteSupervisor,
    fresh_session: session.Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an actor does for the notebook, by its own methods: a worker, its output, its events and its value."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setenv("TMPDIR", str(there))
    table = np.arange(LARGE_BYTES, dtype=np.uint8)

    def train(given: Any) -> int:
        print("seen", len(given))
        return int(given[-1])

    fresh_session.backend.prepare()
    gathered = payload.gather(FunctionWork(train, (table,)), fresh_session.backend)
    packed = pack_payload(gathered, {"__name__": "__main__"}, {})
    task = HostTask(0, "w0", 1, 1, Plan("CPU", 1, 1, "", {}), arrays=len(packed.arrays))
    actor.start(task, packed.data, *packed.arrays)
    link, until = watch.links[0], time.monotonic() + 60
    while not actor._state()["exit"] == 0 and time.monotonic() < until:
        for one in actor.poll(link.offsets, 0.25)[0]:
            watch._receive(link, one)
    deliver(actor, watch, link)
    assert (watch.files.path / "rank-0.log").read_text() == f"seen {LARGE_BYTES}\n", (actor.folder / LOG).read_text()
    assert b'"kind":"end"' in (watch.files.path / "rank-0.jsonl").read_bytes().replace(b" ", b"")
    assert {name for name, _ in actor.results()} == {"result-state.bin", "result-state.pkl", "result-value-0.pkl"}
    assert not (actor.folder / BUNDLE).exists() and not list(actor.folder.glob("array-*"))
    actor.close()
    assert not actor.folder.exists() and [path for path in there.rglob("*") if path.is_file()] == []
