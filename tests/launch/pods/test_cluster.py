"""Connecting to a cluster, and its errors; on a real one of three nodes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch.launching import error_of
from tests.launch.pods import nodes
from tests.launch.pods.clusters import Nodes
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.pods import address, cluster, host_selection
from tpu_magics.launch.pods.pod import Pod
from tpu_magics.launch.strategies import ray as ray_strategy
from tpu_magics.panel.pod import pod_table
from tpu_magics.panel.table import to_text

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
MOST = 11.0 + 4.0  # seconds for an address that does not answer: 10 of timeout, 1 for Ray's import; a busy machine


@dataclass(frozen=True)
class Started:
    gcs: str
    client: str


@pytest.fixture(scope="module")
def three(shared: Nodes) -> Started:
    """A head without CPUs, a host like this process, and one with another patch of torch."""
    return Started(shared.cluster.address, shared.client)


@pytest.fixture(autouse=True)
def _nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test leaves this process without a connection, except those that share one, and with its own handler of
    SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before
    if "found" not in request.fixturenames:
        cluster.disconnect()
        assert not cluster.is_connected()


def refused(hosts: str, processes: int | None = None) -> TpuMagicsError:
    return error_of(host_selection.find_pod, hosts, None, processes)


# -- no cluster answers -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_that_never_answers_is_an_error_after_ten_seconds(scheme: str) -> None:
    """No process or thread of Ray is left."""
    before, threads = set(psutil.Process().children(recursive=True)), set(threading.enumerate())
    with nodes.mute() as port:
        began = time.monotonic()
        error = refused(f"{scheme}127.0.0.1:{port}")
        took = time.monotonic() - began
    assert took < MOST, f"{took:.1f} s"
    assert error.what == f"No Ray cluster answers at {scheme}127.0.0.1:{port}."
    assert "no answer within 10 s" in error.why and "`ray status`" in error.todo
    assert set(psutil.Process().children(recursive=True)) <= before
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", "Connection refused"),
        ("no.such.host.invalid", "not known"),
        ("a" * 70, f"{'a' * 70} is not a valid host name"),
    ],
)
def test_hosts_without_a_server(host: str, why: str) -> None:
    error = refused(f"{host}:{nodes.free_port()}")
    assert why in error.why and ("--port=..." in error.todo or host != "127.0.0.1")


def test_a_name_server_that_does_not_answer_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def silent(*_args: Any, **_kwargs: Any) -> list[Any]:
        answers.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    began = time.monotonic()
    try:
        error = error_of(address.probe_cluster, address.Address("", "head.example", 10001, client=True), timeout=0.5)
        assert time.monotonic() - began < 10, "it waited for the name server"
    finally:
        answers.set()
    assert "the look-up of the name head.example timed out" in error.why


def test_a_recorded_cluster_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{nodes.free_port()}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    error = refused("ray")
    assert "(from " in error.what and "has ended or cannot be reached" in error.todo


def test_without_ray(tmp_path: Path) -> None:
    """In a process that has everything except Ray."""
    code = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'ray' else find(name, *a)\n"
        "import tpu_magics\n"
        "try: tpu_magics.init(hosts='127.0.0.1:6379')\n"
        "except tpu_magics.TpuMagicsError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Ray is not installed in this notebook's environment.\n")
    assert '%pip install "tpu-magics[pods]"' in done.stdout


# -- a cluster answers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(three: Started) -> Pod:
    """Tests with this fixture share its connection."""
    return host_selection.find_pod(three.gcs, None, 4)


def test_the_hosts_are_those_that_have_cpus(found: Pod) -> None:
    assert [(host.index, host.name, host.cpus, host.head) for host in found.hosts] == [
        (0, "alpha", 2.0, False),
        (1, "beta", 3.0, False),
    ]
    assert (found.device, found.workers, found.ranks) == ("CPU", 2, 4)
    assert all(host.memory and host.store >= nodes.STORE for host in found.hosts)


def test_another_patch_of_torch_is_a_note(found: Pod) -> None:
    assert [host.versions["torch"] for host in found.hosts] == ["2.9.0", "2.9.1"]
    assert found.notes == ("torch differs between the hosts: 2.9.0 on this notebook and alpha, 2.9.1 on beta.",)
    text = to_text(pod_table(found), 200)
    assert "torch 2.9.1" in text and found.notes[0] in text


def test_a_host_with_another_release_is_refused(three: Started, found: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook's version is changed; the hosts' answers are real."""
    monkeypatch.setattr("tpu_magics.launch.pods.host_versions.__version__", "9.9")
    error = refused(three.gcs)
    assert error.what == "The hosts do not have the same tpu_magics as this notebook."
    assert error.details[0] == "  this notebook: tpu_magics 9.9" and error.details[1].startswith("  alpha: tpu_magics ")


def test_connecting_again_keeps_the_connection_and_another_replaces_it(three: Started, found: Pod) -> None:
    """The other is a client's from outside the cluster, which finds the same hosts."""
    import ray

    host_selection.find_pod(three.gcs)
    job = ray.get_runtime_context().get_job_id()
    host_selection.find_pod(three.gcs)
    assert ray.get_runtime_context().get_job_id() == job
    pod = host_selection.find_pod(three.client)
    assert (pod.address, pod.ranks) == (three.client, 2)
    assert [host.node for host in pod.hosts] == [host.node for host in found.hosts]
    refused(f"127.0.0.1:{nodes.free_port()}")
    assert cluster.Connection.address is not None and cluster.Connection.address.url == three.client


@pytest.mark.long
def test_ranks_that_do_not_divide(three: Started) -> None:
    error = refused(three.gcs, 3)
    assert error.what == "-n 3 is not possible on 2 hosts."
    assert error.todo == "Use -n 2 or 4, or remove -n for 2: one on each host."
    assert not cluster.is_connected()


def test_the_two_ports_are_distinguished(three: Started) -> None:
    error = refused(f"ray://{three.gcs}")
    assert "belongs to another service of the Ray cluster" in error.what and f"--hosts {three.gcs}" in error.todo
    error = refused(three.client.removeprefix("ray://"))
    assert "belongs to another service of the Ray cluster" in error.what and f"--hosts {three.client}" in error.todo


def test_the_notebooks_own_connection_is_used_and_stays_open(three: Started) -> None:
    import ray

    own = signal.getsignal(signal.SIGTERM)
    ray.init(address=three.gcs, log_to_driver=False)
    try:
        assert host_selection.find_pod("ray").address == three.gcs
        error = refused(f"127.0.0.1:{nodes.free_port()}")
        assert f"already connected to another Ray cluster, at {three.gcs}." in error.what
        cluster.disconnect()
        assert ray.is_initialized()
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, own)  # Ray replaced it


@pytest.mark.long
def test_a_node_that_has_died_is_left_out_although_ray_still_counts_it(shared: Nodes) -> None:
    with shared.added("gamma"):
        assert [host.name for host in host_selection.find_pod(shared.cluster.address).hosts] == [
            "alpha",
            "beta",
            "gamma",
        ]
        shared.kill("gamma")
        assert [host.name for host in host_selection.find_pod(shared.cluster.address).hosts] == ["alpha", "beta"]


# -- the session -------------------------------------------------------------------------------------------------------


def test_init_sets_the_pod_and_without_hosts_removes_it(three: Started, fresh_session: session.Session) -> None:
    """Ray itself prints nothing."""
    from ray._private import worker

    assert worker._worker_logs_enabled is True
    session.initialise(processes=2, hosts=three.gcs)
    assert worker._worker_logs_enabled is False
    assert fresh_session.pod is not None and (fresh_session.pod.ranks, fresh_session.processes) == (2, 2)
    with pytest.raises(TpuMagicsError, match="-n 3 is not possible"):
        session.initialise(processes=3, hosts=three.gcs)
    assert fresh_session.pod is not None
    session.initialise()
    assert fresh_session.pod is None and not cluster.is_connected()
    assert worker._worker_logs_enabled is True


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"spmd": 2}, "--spmd and --hosts cannot be combined."),
        ({"framework": "tensorflow"}, "--hosts is for PyTorch/XLA only."),
    ],
)
def test_options_that_cannot_be_combined_with_hosts(
    options: dict[str, Any], what: str, fresh_session: session.Session
) -> None:
    error = error_of(session.initialise, hosts="10.0.0.2:6379", **options)
    assert error.what == what


def test_a_target_without_hosts(fresh_session: session.Session) -> None:
    import tpu_magics

    error = error_of(tpu_magics.init, target="v5e-16")
    assert error.what == "--target needs --hosts."
    with pytest.raises(TpuMagicsError, match="There is no TPU named"):
        tpu_magics.init(target="v99", hosts="ray")


# -- a cluster that ends -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_cluster_that_was_restarted_at_the_same_address_is_another() -> None:
    """Ray's own connection would wait for the old cluster."""
    head = {"node_name": "head", "gcs_server_port": nodes.free_port()}
    with nodes.started_elsewhere([head]) as address:
        before = host_selection.find_pod(address)
    with nodes.started_elsewhere([head]) as again:
        assert again == address
        error = error_of(ray_strategy.require_alive, before)
        assert error.what == f"The Ray cluster at {address} was restarted."
        assert "Run %tpu_init --hosts again" in error.todo
        now = host_selection.find_pod(address)
        assert now.hosts[0].node != before.hosts[0].node
        ray_strategy.require_alive(now)
