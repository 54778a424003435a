"""A run saves before what ends it: a SIGTERM, a notice of the host's, the end of a session."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import failed, run, wait_until
from tests.launch.resume import programs
from tpu_magics.host import inspect_host
from tpu_magics.host.environments import Environment
from tpu_magics.launch import session
from tpu_magics.launch.resume import ending
from tpu_magics.launch.resume.ending import EndWatch

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session"), pytest.mark.timeout(120)]

fake_metadata: dict[str, str] = {}


class FakeMetadataServer(http.server.BaseHTTPRequestHandler):
    """Google Cloud's, as far as it tells what happens to this instance (cloud.google.com/compute/docs/metadata)."""

    def do_GET(self) -> None:
        text = fake_metadata.get(self.path.rpartition("/")[2], "")
        self.send_response(200 if text else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(ending, "EVERY", 0.05)
    fake_metadata.clear()
    fake_metadata.update({"preempted": "FALSE", "maintenance-event": "NONE"})
    found = http.server.HTTPServer(("127.0.0.1", 0), FakeMetadataServer)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield "127.0.0.1", found.server_address[1]
    found.shutdown()
    thread.join()
    found.server_close()


class Watched:
    """What a watch has asked for."""

    def __init__(self, environment: Environment, server: tuple[str, int]) -> None:
        self.said: list[str] = []
        self.saves = self.stops = 0
        host = replace(inspect_host(), environment=environment)
        self.watch = EndWatch(host, self._save, self._stop, lambda: False, self.said.append, server)

    def _save(self) -> None:
        self.saves += 1

    def _stop(self) -> None:
        self.stops += 1


@pytest.fixture
def on_a_vm(server: tuple[str, int]) -> Iterator[Watched]:
    found = Watched(Environment("tpu-vm", "TPU VM"), server)
    found.watch.start(background=False)
    yield found
    found.watch.stop()
    wait_until(lambda: not any(one.name == "tpu_magics-end" for one in threading.enumerate()))


def test_a_preemption_saves_and_stops(on_a_vm: Watched) -> None:
    time.sleep(0.2)
    assert not on_a_vm.stops
    fake_metadata["preempted"] = "TRUE"
    wait_until(lambda: on_a_vm.stops == 1)
    assert "preempted" in on_a_vm.said[0]


def test_maintenance_saves_once_and_goes_on(on_a_vm: Watched) -> None:
    fake_metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    wait_until(lambda: on_a_vm.saves == 1)
    time.sleep(0.3)
    assert (on_a_vm.saves, on_a_vm.stops, len(on_a_vm.said)) == (1, 0, 1)


def test_the_end_of_a_session_is_known(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time() - 9 * 3600 + ending.BEFORE_THE_END + 0.4
    monkeypatch.setattr(ending, "session_since", lambda: began)
    found = Watched(Environment("kaggle", "Kaggle", limit=9 * 3600.0), server)
    found.watch.start(background=False)
    assert not found.saves
    wait_until(lambda: found.saves == 1)
    found.watch.stop()
    assert "session ends" in found.said[0]
    wait_until(lambda: not any(one.name == "tpu_magics-end" for one in threading.enumerate()))


# -- SIGTERM ----------------------------------------------------------------------------------------------------------


def ends_in_a_fork(body: Callable[[], Any]) -> int:
    """How a process ends that does this: minus the number of its signal."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("background", [False, True])
def test_a_sigterm_to_the_notebook_saves_first(background: bool, tmp_path: Path) -> None:
    def body() -> None:
        session.initialise(checkpoints=str(tmp_path / "place"))
        threading.Thread(target=terminate_when_training, args=(tmp_path,), daemon=True).start()
        run(programs.plain, programs.begin(), kwargs={"epochs": 2000}, background=background, timeout=None)
        time.sleep(60)

    assert ends_in_a_fork(body) == -signal.SIGTERM
    assert list((tmp_path / "place" / "plain").glob("step-*"))
    assert not list((tmp_path / "place" / "plain").glob(".unfinished*"))


def terminate_when_training(tmp_path: Path) -> None:
    run_ = None
    while run_ is None or not run_.run.events("steps"):
        time.sleep(0.05)
        run_ = session.current.last
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_sigterm_to_a_worker_saves_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.initialise(checkpoints=str(tmp_path / "place"))
    monkeypatch.setenv(programs.KILL, programs.kill_at(9, name="SIGTERM"))
    monkeypatch.setattr(programs.time, "sleep", lambda _seconds: None)  # the worker goes on after it
    error = failed(programs.plain, programs.begin())
    assert error.what == "The run was ended from outside: a worker got a SIGTERM."
    assert "The newest checkpoint is of step" in error.todo
    names = [one.name for one in (tmp_path / "place" / "plain").glob("step-*")]
    [step] = [int(name.split("-")[1]) for name in names]
    assert 9 <= step < 36
