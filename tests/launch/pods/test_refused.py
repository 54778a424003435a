"""Errors before anything is sent, by their texts, without a cluster. Ray's errors are raised by Ray's own code."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from tests.launch.launching import error_of, refused
from tests.launch.pods.nodes import free_port, mute
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.options import Options
from tpu_magics.launch.pods import address, cluster, host_selection, payload, slices
from tpu_magics.launch.pods.address import Address
from tpu_magics.launch.pods.cluster import ClusterNode
from tpu_magics.launch.pods.pod import Pod, PodHost
from tpu_magics.launch.strategies import ray as ray_strategy

HEAD = Address("10.0.0.2:6379", "10.0.0.2", 6379)
GIGABYTE = 10**9


def pod_of(*memory: int | None, workers: int = 1, same: bool = False) -> Pod:
    hosts = tuple(
        PodHost(i, f"host-{i}", "", "10.0.0.1" if same else f"10.0.0.{i}", memory=free, head=i == 0)
        for i, free in enumerate(memory)
    )
    return Pod("10.0.0.2:6379", hosts, workers=workers)


# -- not enough CPUs or memory ----------------------------------------------------------------------------------------


def test_nodes_without_cpus_take_no_rank() -> None:
    alive = [ClusterNode("a", "first", "10.0.0.1", head=True), ClusterNode("b", "second", "10.0.0.2")]
    error = error_of(host_selection._hosts_with_cpus, alive)
    assert error.what == "No host of this cluster has a CPU for a rank."
    assert error.why.startswith("Alive: the head node first, second, with 0 CPUs each.")
    assert "ray start --address=HEAD:6379" in error.todo and "--num-cpus=2" in error.todo
    assert host_selection._hosts_with_cpus([*alive, ClusterNode("c", "third", "10.0.0.3", cpus=1.0)])[0].name == "third"


def test_a_head_node_without_memory_is_named_with_the_numbers() -> None:
    error = error_of(host_selection.require_memory, pod_of(GIGABYTE, 50 * GIGABYTE), models=GIGABYTE)
    assert error.what.startswith("Not enough memory on the head node host-0: 1 rank needs")
    assert "copies of the models" in error.why and "--num-cpus=0" in error.todo
    host_selection.require_memory(pod_of(GIGABYTE, 50 * GIGABYTE), models=GIGABYTE, force=True)
    host_selection.require_memory(pod_of(None, 50 * GIGABYTE), models=GIGABYTE)


def test_nodes_of_one_machine_share_its_memory() -> None:
    one = host_selection.memory_per_host(pod_of(0), GIGABYTE)
    host_selection.require_memory(pod_of(one, one), models=GIGABYTE)
    with pytest.raises(TpuMagicsError, match="2 ranks need"):
        host_selection.require_memory(pod_of(one, one, same=True), models=GIGABYTE)


# -- errors of Ray ----------------------------------------------------------------------------------------------------


def opening(monkeypatch: pytest.MonkeyPatch, raises: Any) -> TpuMagicsError:
    """The error of a connection whose `ray.init` only calls `raises`."""
    import ray

    monkeypatch.setattr(ray, "init", lambda **_: raises())
    error = error_of(cluster._open, HEAD)
    assert not ray.is_initialized()
    return error


@pytest.mark.parametrize("other", [{"ray_version": "2.40.0"}, {"python_version": "3.9.1"}])
def test_a_cluster_with_another_ray_or_python(other: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    utils: Any = import_module("ray._private.utils")  # as in 2.60
    own = dict(zip(("ray_version", "python_version"), utils.compute_version_info(), strict=False))

    def fake_init() -> None:
        utils.check_version_info({**own, **other}, "10.0.0.9", python_version_match_level="minor")

    error = opening(monkeypatch, fake_init)
    assert error.what == "The cluster at 10.0.0.2:6379 has another version of Ray or Python than this notebook."
    assert next(iter(other.values())) in error.why and own["ray_version"] in error.why
    assert "Install the same version of Ray" in error.todo


def test_a_token_is_not_loaded_while_another_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    assert "--hosts off" not in address.token_error(HEAD).todo
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert "Close the open connection first: %tpu_init --hosts off." in address.token_error(HEAD).todo


@pytest.mark.parametrize(("client", "tries"), [(True, cluster.CLIENT_TRIES), (False, 1)])
def test_a_clients_process_that_dies_at_its_start_is_tried_again(
    client: bool, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    asked = []

    def fake_init(**_: Any) -> None:
        asked.append(1)
        raise ConnectionAbortedError("RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err")

    monkeypatch.setattr(ray, "init", fake_init)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(TpuMagicsError, match="Ray could not connect to"):
        cluster._open(replace(HEAD, client=client))
    assert len(asked) == tries


def test_a_machine_that_is_not_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    services: Any = import_module("ray._private.services")  # as in 2.60

    def fake_init() -> None:
        services.get_node_to_connect_for_driver(None, "10.0.0.9", timeout_seconds=0)

    error = opening(monkeypatch, fake_init)
    assert error.what == "This machine is not a node of the cluster at 10.0.0.2:6379."
    assert "--hosts ray://10.0.0.2:10001" in error.todo and "ray start --address=10.0.0.2:6379" in error.todo


def test_without_a_node_here_the_error_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    services: Any = import_module("ray._private.services")  # as in 2.60
    monkeypatch.setattr(cluster, "NODE_START_SECONDS", 0.3)
    monkeypatch.setattr(services, "find_node_ids", list)  # no process here is a raylet
    with pytest.raises(TpuMagicsError, match=r"This machine is not a node of the cluster at 10\.0\.0\.2:6379\."):
        cluster._require_node(HEAD)
    monkeypatch.setattr(services, "find_node_ids", lambda: ["ab"])
    cluster._require_node(HEAD)


def test_an_interrupt_leaves_no_half_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look like the notebook's own connection, and never be closed."""
    import ray

    ended = []

    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", interrupted)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(1))
    with pytest.raises(KeyboardInterrupt):
        cluster._open(HEAD)
    assert ended == [1]


# -- a head that is gone ----------------------------------------------------------------------------------------------


def test_a_head_that_is_gone_is_an_error_before_ray_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, and the cell, would wait for it."""
    gone = Address("h", "127.0.0.1", free_port())
    monkeypatch.setattr(cluster.Connection, "address", gone)
    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    monkeypatch.setattr(cluster, "nodes", lambda: pytest.fail("Ray was called"))
    with pytest.raises(TpuMagicsError, match="No Ray cluster answers at"):
        ray_strategy.require_alive(pod_of(None))


def test_all_addresses_of_a_name_share_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two accept no connection: their queues are full."""
    with socket.socket() as first, socket.socket() as second, mute() as port:
        full = [_full(one) for one in (first, second)]
        told = [socket.getaddrinfo("127.0.0.1", one, type=socket.SOCK_STREAM)[0] for one in (*full, port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: told)
        began = time.monotonic()
        address._connect_once("several", 1, began + 0.9)
        assert time.monotonic() - began < 5
        told.pop()
        with pytest.raises(OSError, match="timed out"):
            address._connect_once("several", 1, time.monotonic() + 0.4)


def _full(listener: socket.socket) -> int:
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    place = listener.getsockname()
    for _ in range(4):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(place)
        _WAITING.append(waiting)
    return int(place[1])


_WAITING: list[socket.socket] = []


@pytest.fixture(autouse=True)
def _no_socket_stays() -> Any:
    yield
    while _WAITING:
        _WAITING.pop().close()


# -- not available on several hosts -----------------------------------------------------------------------------------


def test_spmd_is_refused_on_hosts() -> None:
    error = error_of(ray_strategy.with_options, pod_of(None, None), Options(spmd=2))
    assert error.what == "--spmd is not available on several hosts."
    assert "%tpu_init --hosts off" in error.todo


def test_tensorflow_is_refused_on_hosts(fresh_session: session.Session) -> None:
    fresh_session.framework, fresh_session.pod = "tensorflow", pod_of(None, None)
    error = refused(lambda: None)
    assert error.what == "TensorFlow cannot train on the hosts of a Ray cluster."
    assert "%tpu_init --hosts off" in error.todo


@pytest.mark.parametrize("word", ["", "off", "OFF", " Off "])
def test_off_in_any_spelling(word: str, fresh_session: session.Session) -> None:
    fresh_session.pod = pod_of(None)
    assert address.is_off(word) and address.parse_address(word) is None
    assert host_selection.join_pod(fresh_session, word, None, Options()) is None and fresh_session.pod is None
    host_selection.require_pytorch(word)


@pytest.mark.parametrize("connected", [False, True])
def test_a_slice_whose_connection_or_head_is_gone_is_forgotten(
    connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Address("h", "127.0.0.1", free_port()) if connected else None
    monkeypatch.setattr(cluster.Connection, "address", gone)
    monkeypatch.setattr(cluster, "is_connected", lambda: connected)
    monkeypatch.setattr(slices.Reservation, "group", object())  # an object without methods
    slices.release()
    assert slices.Reservation.group is None


# -- what is not sent --------------------------------------------------------------------------------------------------


def test_secrets_and_folders_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME", "ACCELERATE_API_KEY", "HF_AUTH", "AWS_SECRET", "USER")
    travel = ("XLA_FLAGS", "ACCELERATE_MIXED_PRECISION", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE")
    for name in (*home, *travel):
        monkeypatch.setenv(name, "x")
    found = dict(payload._environment())
    assert set(travel) <= set(found) and not set(home) & set(found)
    assert set(found) < set(os.environ)


def test_a_rank_is_on_the_host_that_has_it() -> None:
    """Workers of several devices count as many ranks."""
    pod = replace(pod_of(None, None, workers=2), replicas=2)
    assert [one["ranks"] for one in ray_strategy.host_records(pod)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
