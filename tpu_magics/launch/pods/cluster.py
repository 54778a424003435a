"""A Ray cluster as this process sees it: reaching it, its nodes, leaving it.

What lives here: the connection. What does not: reading addresses (address.py), asking one whether it answers
(asking.py), and what is done with the nodes.

Ray's own `init` waits 40 s for an address that does not answer, and prints what it tries. So the address is asked
first, here, with a deadline: nothing of Ray's is started before something has answered that is a Ray cluster.
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
from tpu_magics.launch.pods import auth_token
from tpu_magics.launch.pods.address import CLIENT_PORT, LOCAL, Address
from tpu_magics.launch.pods.probe import TIMEOUT, probe_cluster

SHORT_TIMEOUT = 2.0  # seconds for an answer where much has been waited for already
# The server of ray:// forks a process for each client while its own threads run, and that process sometimes dies of it
# at once (seen with 2.60); another client is given another one.
CLIENT_TRIES, CLIENT_ERROR = 4, "Starting Ray client server failed"
NODE_START_SECONDS = 2.0  # seconds in which a node of this machine that is being started is there
INSTALL = '%pip install "tpu-magics[pods]"'
# What Ray reads while it is imported or connects: no usage statistics, no lines of its C++ part in the cells; another
# patch of Python is a warning (versions.py says it); and where the head is lost, Ray would end this process, the
# notebook's kernel, after 60 s. The last two are no public settings of Ray's (read in 2.60, _private/utils.py and
# ray_config_def.h).
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000",
}


@dataclass(frozen=True)
class ClusterNode:
    """A node that is alive. `name`: for people, unique in the cluster; `chips`: its TPU resource; `store`: bytes of its
    part of the object store."""

    id: str
    name: str
    address: str
    cpus: float = 0.0
    chips: float = 0.0
    store: float = 0.0
    head: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


class Connection:
    """The one of this process. `address`: None where there is none, or the notebook's own code made it; `cluster`: the
    id of what it leads to."""

    address: Address | None = None
    cluster: bytes = b""


def require_ray() -> None:
    """Raise TpuMagicsError where Ray is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise TpuMagicsError(
            "Ray is not installed in this notebook's environment.",
            "A run on many hosts goes through a Ray cluster; --hosts connects to it.",
            f"{INSTALL} here and on the cluster's hosts, the same version, and restart the kernel.",
        )


def connect(address: Address) -> None:
    """Connect this process; one connection of `connect` takes the place of another. A connection of the notebook's own
    code is taken as it is. Raises TpuMagicsError where nothing answers within PATIENCE seconds, or it is no place to
    connect from."""
    require_ray()
    until = time.monotonic() + TIMEOUT
    with _ray_environment():
        import ray

        if ray.is_initialized() and Connection.address is None:
            _require_same(address)
            return
        if not ray.is_initialized():
            auth_token.load_token(address)
        there = probe_cluster(address, max(until - time.monotonic(), TIMEOUT / 2))
        if ray.is_initialized() and (Connection.address, Connection.cluster) == (address, there):
            return
        if not address.client:
            _require_node(address)
        disconnect()
        with _sigterm_handler_kept(), _native_stderr_silenced():
            _open(address)
        _silence_worker_logs(True)
    Connection.address, Connection.cluster = address, there


def disconnect() -> None:
    """Close the connection, where `connect` made it."""
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
    """Whether Ray prints into the cell what it hears of nodes: pages of a raylet's log where one is lost, beside the
    run's own error. `log_to_driver` does not stop that (ray/_private/worker.py, 2.60: listen_error_messages)."""
    worker: Any = import_module("ray._private.worker")
    worker._worker_logs_enabled = not on


def require_answer(patience: float = TIMEOUT) -> None:
    """Raise TpuMagicsError where the head of the connected cluster is gone, or another one has its address. Ray itself
    would wait for it, without end by the last of QUIET."""
    address = Connection.address or notebook_connection("ray")
    if address is None or (address.client and Connection.address is None):
        return  # where a client of the notebook's own is connected to, Ray does not tell
    there = probe_cluster(address, patience)
    if Connection.address is not None and there != Connection.cluster:
        raise TpuMagicsError(
            f"The Ray cluster at {address.text} was started anew.",
            "This notebook is connected to the one that was there before.",
            "Run %tpu_init --hosts again, for the hosts that are there now.",
        )


def is_alive() -> bool:
    """Whether there is a connection, and the head at its other end."""
    try:
        require_answer(SHORT_TIMEOUT)
    except TpuMagicsError:
        return False
    return is_connected()


def any_dead(nodes_before: Sequence[ClusterNode], patience: float) -> bool:
    """Whether one of these nodes is dead, or is found to be within `patience` seconds: Ray takes its time to say so."""
    until = time.monotonic() + patience
    before = {node.id for node in nodes_before}
    while before <= {node.id for node in nodes()}:
        if time.monotonic() > until:
            return False
        time.sleep(0.5)
    return True


def nodes() -> list[ClusterNode]:
    """Those that are alive: the head first, then by name."""
    ray: Any = import_module("ray")
    found = [_node(record) for record in ray.nodes() if record["Alive"]]
    ordered = sorted(found, key=lambda node: (not node.head, node.name, node.id))
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


def _with_unique_names(found: Sequence[ClusterNode]) -> Iterator[ClusterNode]:
    """Several nodes of one machine have one name: the later ones get a number."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    for node in found:
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
                raise  # an interrupt: half a connection would be taken for one of the notebook's own
            if not (left and CLIENT_ERROR in str(error)):
                raise _connection_error(address, error) from error
        time.sleep(1)


def _require_node(address: Address) -> None:
    """Raise TpuMagicsError where this machine has no node of any cluster: Ray would look for one for 60 s
    (ray/_private/services.py, 2.60: get_node_to_connect_for_driver)."""
    find = getattr(import_module("ray._private.services"), "find_node_ids", None)
    until = time.monotonic() + NODE_START_SECONDS
    while find is not None and not find():
        if time.monotonic() > until:
            raise _no_node_error(address)
        time.sleep(0.2)


def _no_node_error(address: Address) -> TpuMagicsError:
    return TpuMagicsError(
        f"This machine is no node of the cluster at {address.text}.",
        "HOST:PORT connects by the node on this machine, and there is none.",
        f"Connect from outside: --hosts ray://{address.host}:{CLIENT_PORT}, or join the cluster with "
        f"`!ray start --address={address.target}`",
    )


def _connection_error(address: Address, error: Exception) -> TpuMagicsError:
    said = str(error).strip()
    if "ersion mismatch" in said:
        return TpuMagicsError(
            f"The cluster at {address.text} has another version of Ray or Python than this notebook.",
            " ".join(said.split()),
            "Install the same versions here and on the hosts; Ray compares its own exactly, Python's to the minor one.",
        )
    if "node info found" in said or "No node info" in said:
        return _no_node_error(address)
    line = (said.splitlines() or [type(error).__name__])[0]
    return TpuMagicsError(
        f"Ray could not connect to {address.text}.",
        f"{type(error).__name__}: {line[:300]}",
        "See `ray status` on the head node, and Ray's own logs there (/tmp/ray/session_latest/logs).",
    )


def _require_same(address: Address) -> None:
    """The notebook's own code has connected this process: it must be to the cluster that is asked for, as far as that
    can be seen."""
    ray: Any = import_module("ray")
    connected = "" if ray.util.client.ray.is_connected() else str(ray.get_runtime_context().gcs_address)
    if address.asked in LOCAL or _same_address(connected, address):
        return
    raise TpuMagicsError(
        f"This notebook is connected to another Ray cluster already{f', at {connected}' if connected else ''}.",
        f"Its own code has called ray.init(), and a process has one connection; --hosts asks for {address.text}.",
        "Name that cluster (--hosts ray takes the connection that is there), or call ray.shutdown() first.",
    )


def _same_address(connected: str, address: Address) -> bool:
    host, _, port = connected.rpartition(":")
    if port != str(address.port) or address.client:
        return False
    try:
        return socket.gethostbyname(host) == socket.gethostbyname(address.host) or _is_loopback(address.host)
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1", "[::1]")


@contextmanager
def _ray_environment() -> Iterator[None]:
    """QUIET, where nothing of it is set. What Ray reads at its import stays set in this process only while it reads."""
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
    """Ray's C++ part says on the descriptor of stderr that it has been told to be quiet. What is wrong it raises."""
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
    """Ray takes SIGTERM for itself while it connects; the notebook keeps its own."""
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


def notebook_connection(asked: str) -> Address | None:
    """For `--hosts ray`, where the notebook's own code has connected this process: that cluster. None otherwise."""
    if asked.strip().lower() not in LOCAL or Connection.address is not None or not is_connected():
        return None
    ray: Any = import_module("ray")
    if ray.util.client.ray.is_connected():
        return Address(asked, "HEAD", CLIENT_PORT, client=True, source="ray.init() in this notebook")
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return Address(asked, host, int(port), source="ray.init() in this notebook")


def is_connected() -> bool:
    """Whether this process has a connection to a cluster; imports nothing."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
