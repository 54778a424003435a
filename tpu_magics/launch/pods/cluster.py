"""This process's connection to a Ray cluster: connecting, the cluster's nodes, disconnecting.

Ray's `init` waits 40 s for an address that does not answer, and prints each attempt. So `connect` first probes the
address with a deadline (address.py).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods.address import CLIENT_PORT, LOCAL, PROBE_SECONDS, Address, load_token, probe_cluster

SHORT_TIMEOUT = 2.0  # seconds, for a probe at the end of a run
# The Ray client server forks a process for each client while its own threads run, and that process sometimes dies at
# once (seen with 2.60). A second try gets a new process.
CLIENT_TRIES, CLIENT_ERROR = 4, "Starting Ray client server failed"
NODE_START_SECONDS = 2.0  # a node that is starting on this machine is ready after this time
INSTALL = '%pip install "tpu-magics[pods]"'
# Variables that Ray reads when it is imported or connects: no usage statistics; no log lines of its C++ part in cells;
# another patch version of Python is only a warning (host_versions.py reports it); and this process, the kernel, stays
# alive if the head node is lost (Ray would end it after 60 s). The last two are private settings (read in 2.60,
# _private/utils.py and ray_config_def.h).
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000",
}


@dataclass(frozen=True)
class ClusterNode:
    """A node that is alive. `name`: unique in the cluster; `chips`: its "TPU" resource; `store`: bytes of its part of
    the object store."""

    id: str
    name: str
    address: str
    cpus: float = 0.0
    chips: float = 0.0
    store: float = 0.0
    head: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


class Connection:
    """The connection that `connect` opened in this process. `address`: None if there is none, or if the notebook's own
    code connected; `cluster`: the cluster's id."""

    address: Address | None = None
    cluster: bytes = b""


def require_ray() -> None:
    """Raise TpuMagicsError if Ray is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise TpuMagicsError(
            "Ray is not installed in this notebook's environment.",
            "--hosts connects to a Ray cluster.",
            f"Run {INSTALL} here and on the cluster's hosts, with the same versions, and restart the kernel.",
        )


def connect(address: Address) -> None:
    """Connect this process, in place of an earlier connection of `connect`. A connection that the notebook's own code
    opened is used as it is. Raises TpuMagicsError if no cluster answers within TIMEOUT seconds, or if this machine
    cannot connect to it."""
    require_ray()
    with _ray_environment():
        import ray

        if ray.is_initialized() and Connection.address is None:
            _require_same(address)
            return
        if not ray.is_initialized():
            load_token(address)
        found = probe_cluster(address)
        if ray.is_initialized() and (Connection.address, Connection.cluster) == (address, found):
            return
        if not address.client:
            _require_node(address)
        disconnect()
        with _sigterm_handler_kept(), _native_stderr_silenced():
            _open(address)
        _silence_worker_logs(True)
    Connection.address, Connection.cluster = address, found


def disconnect() -> None:
    """Close the connection that `connect` opened."""
    if Connection.address is None:
        return
    Connection.address = None
    import ray

    try:
        with _sigterm_handler_kept():
            ray.shutdown()
    finally:
        _silence_worker_logs(False)


def _silence_worker_logs(on: bool) -> None:
    """Stop Ray from printing pages of a lost node's log into the cell, next to the run's own error. `log_to_driver`
    does not stop that (ray/_private/worker.py, 2.60: listen_error_messages)."""
    worker: Any = import_module("ray._private.worker")
    worker._worker_logs_enabled = not on


def require_answer(timeout: float = PROBE_SECONDS) -> None:
    """Raise TpuMagicsError if the head of the connected cluster is gone, or if another cluster has its address. Ray
    itself would wait forever, because of the last of RAY_SETTINGS."""
    address = Connection.address or notebook_connection("ray")
    if address is None or (address.client and Connection.address is None):
        return  # Ray does not say where a client of the notebook's own is connected
    found = probe_cluster(address, timeout)
    if Connection.address is not None and found != Connection.cluster:
        raise TpuMagicsError(
            f"The Ray cluster at {address.text} was restarted.",
            "This notebook is still connected to the old cluster.",
            "Run %tpu_init --hosts again to connect to the new one.",
        )


def is_alive() -> bool:
    """Whether there is a connection whose head node answers."""
    try:
        require_answer(SHORT_TIMEOUT)
    except TpuMagicsError:
        return False
    return is_connected()


def any_dead(nodes_before: Sequence[ClusterNode], timeout: float) -> bool:
    """Whether Ray reports one of these nodes as dead within `timeout` seconds."""
    until = time.monotonic() + timeout
    before = {node.id for node in nodes_before}
    while before <= {node.id for node in nodes()}:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def nodes() -> list[ClusterNode]:
    """The nodes that are alive: the head first, then by name."""
    ray: Any = import_module("ray")
    alive = [_node(record) for record in ray.nodes() if record["Alive"]]
    ordered = sorted(alive, key=lambda node: (not node.head, node.name, node.id))
    return list(_with_unique_names(ordered))


def _node(record: Mapping[str, Any]) -> ClusterNode:
    resources, address = record["Resources"], str(record["NodeManagerAddress"])
    given = str(record.get("NodeName") or "")
    return ClusterNode(
        id=str(record["NodeID"]),
        name=given if given and given != address else str(record.get("NodeManagerHostname") or address),
        address=address,
        cpus=float(resources.get("CPU", 0.0)),
        chips=float(resources.get("TPU", 0.0)),
        store=float(resources.get("object_store_memory", 0.0)),
        head="node:__internal_head__" in resources,  # no public name (ray/_common/constants.py, 2.60)
        labels=dict(record.get("Labels") or {}),
    )


def _with_unique_names(nodes: Sequence[ClusterNode]) -> Iterator[ClusterNode]:
    """Nodes of one machine have the same name: the later ones get a number."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    for node in nodes:
        seen[node.name] = number = seen.get(node.name, 0) + 1
        yield node if number == 1 else replace(node, name=f"{node.name}-{number}")


# -- connecting --------------------------------------------------------------------------------------------------------


def _open(address: Address) -> None:
    import logging

    import ray

    for left in reversed(range(CLIENT_TRIES if address.client else 1)):
        try:
            ray.init(address=address.url, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
            return
        except BaseException as error:
            with _sigterm_handler_kept():
                ray.shutdown()
            if not isinstance(error, Exception):
                raise  # an interrupt: a half-open connection would look like one of the notebook's own
            if not (left and CLIENT_ERROR in str(error)):
                raise _connection_error(address, error) from error
        time.sleep(1)


def _require_node(address: Address) -> None:
    """Raise TpuMagicsError if no Ray node runs on this machine: Ray would look for one for 60 s
    (ray/_private/services.py, 2.60: get_node_to_connect_for_driver)."""
    find = getattr(import_module("ray._private.services"), "find_node_ids", None)
    until = time.monotonic() + NODE_START_SECONDS
    while find is not None and not find():
        if time.monotonic() > until:
            raise _no_node_error(address)
        time.sleep(0.2)


def _no_node_error(address: Address) -> TpuMagicsError:
    return TpuMagicsError(
        f"This machine is not a node of the cluster at {address.text}.",
        "--hosts HOST:PORT connects through a Ray node on this machine, and none runs here.",
        f"Connect from outside: --hosts ray://{address.host}:{CLIENT_PORT}, or join the cluster with "
        f"`!ray start --address={address.target}`",
    )


def _connection_error(address: Address, error: Exception) -> TpuMagicsError:
    message = str(error).strip()
    if "ersion mismatch" in message:
        return TpuMagicsError(
            f"The cluster at {address.text} has another version of Ray or Python than this notebook.",
            " ".join(message.split()),
            "Install the same version of Ray and the same minor version of Python here and on the hosts.",
        )
    if "node info found" in message or "No node info" in message:
        return _no_node_error(address)
    line = (message.splitlines() or [type(error).__name__])[0]
    return TpuMagicsError(
        f"Ray could not connect to {address.text}.",
        f"{type(error).__name__}: {line[:300]}",
        "On the head node, check `ray status` and Ray's logs (/tmp/ray/session_latest/logs).",
    )


def _require_same(address: Address) -> None:
    """Raise TpuMagicsError if the notebook's own code connected to another cluster than this address, as far as Ray
    tells."""
    ray: Any = import_module("ray")
    connected = "" if ray.util.client.ray.is_connected() else str(ray.get_runtime_context().gcs_address)
    if address.given in LOCAL or _same_address(connected, address):
        return
    raise TpuMagicsError(
        f"This notebook is already connected to another Ray cluster{f', at {connected}' if connected else ''}.",
        f"Code in this notebook called ray.init(). A process has one connection, and --hosts names {address.text}.",
        "Use the open connection with --hosts ray, or call ray.shutdown() first.",
    )


def _same_address(connected: str, address: Address) -> bool:
    host, _, port = connected.rpartition(":")
    if port != str(address.port) or address.client:
        return False
    loopback = address.host in ("localhost", "127.0.0.1", "::1", "[::1]")
    try:
        return socket.gethostbyname(host) == socket.gethostbyname(address.host) or loopback
    except OSError:
        return False


@contextmanager
def _ray_environment() -> Iterator[None]:
    """Set those of RAY_SETTINGS that are not set, while Ray is imported and connects."""
    before = {name: os.environ.get(name) for name in RAY_SETTINGS}
    os.environ.update({name: text for name, text in RAY_SETTINGS.items() if before[name] is None})
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)


@contextmanager
def _native_stderr_silenced() -> Iterator[None]:
    """Ray's C++ part writes to the file descriptor of stderr that its log is turned off. Errors are raised."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM when it connects; this restores the notebook's own."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def notebook_connection(hosts: str) -> Address | None:
    """The cluster that the notebook's own code connected to, if `hosts` is "ray" or "auto"; else None."""
    if hosts.strip().lower() not in LOCAL or Connection.address is not None or not is_connected():
        return None
    ray: Any = import_module("ray")
    if ray.util.client.ray.is_connected():
        return Address(hosts, "HEAD", CLIENT_PORT, client=True, source="ray.init() in this notebook")
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return Address(hosts, host, int(port), source="ray.init() in this notebook")


def is_connected() -> bool:
    """Whether this process has a connection to a cluster; imports nothing."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
