"""Where TensorFlow trains: this host's TPU, a remote TPU (by name or grpc address), or the default strategy. And how
its functions are cancelled when the user interrupts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tpu_magics.backends.base import DEFAULT, TPU_LOCAL, TPU_REMOTE, Placement, TrainingProblem
from tpu_magics.backends.tensorflow import keras_settings
from tpu_magics.backends.tensorflow.availability import (
    HostStatus,
    no_tpu,
    not_importable,
    refuse_broken,
    require_no_torch_xla,
)
from tpu_magics.errors import TpuMagicsError, plural

# Read in TensorFlow 2.21: TPUClusterResolver(tpu="local") has the master ""; connecting to it does nothing,
# initialising runs ConfigureDistributedTPU on this host. Initialising a TPU a second time loses the variables on it.

LOCAL = "local"

# Seen in TensorFlow 2.21: MirroredStrategy over logical CPUs cannot be compiled by XLA ("Trying to access resource
# ... located in device CPU:1"); nor can an all-reduce between processes (MultiWorkerMirroredStrategy: the text below;
# Keras 3.15's fit does not know its PerReplica values either). keras.distribution does nothing with TensorFlow, and
# DTensor on virtual CPUs ignores jit_compile.
ONE_REPLICA = (
    'one replica. More cannot be rehearsed: TensorFlow raises "Collectives are not yet implemented for CPU '
    'devices when compiling with XLA". Gradients are not summed over replicas, and the global batch is that of '
    "one replica."
)
_RESTART_FOR_TPU = (
    "This host now has a TPU, but this kernel started without it (PJRT_DEVICE=CPU was set, or there was none). "
    "Restart the kernel to train on the TPU."
)
NODE_ENDED = TrainingProblem(
    "This is a TPU node, reached over the network. Google discontinued TPU nodes in April 2025.",
    "TensorFlow runs the input pipeline and reads files on the node, not here.",
    "Keep the data in memory (tpu_magics.tf.in_memory) or as TFRecord files under gs://, and save checkpoints "
    "under gs:// or with tpu_magics.tf.save. A TPU VM does not have these limits.",
    refuses=False,
)


@dataclass(frozen=True)
class _Connection:
    """The TPU of this process. `requested`: "local", a name, an address, or "" for no TPU."""

    requested: str
    placed: Placement


_connection: _Connection | None = None


def prepare(host: HostStatus | None = None) -> None:
    """Import TensorFlow and Keras. Raises TpuMagicsError if that fails or would break something."""
    require_no_torch_xla()
    if host is not None:
        refuse_broken(host, ("versions",))
    try:
        import keras
        import tensorflow
    except ImportError as error:
        raise not_importable(error) from error
    if keras.backend.backend() != "tensorflow":
        raise TpuMagicsError(
            f"Keras uses the {keras.backend.backend()} backend.",
            "Cells train with TensorFlow, and Keras chooses its backend when it is imported.",
            'Restart the kernel and set os.environ["KERAS_BACKEND"] = "tensorflow" before Keras is imported.',
        )
    assert tensorflow is not None
    keras_settings.record_compile_calls()


# -- where ------------------------------------------------------------------------------------------------------------


def initialise(requested: str = "", precision: str = "", host: HostStatus | None = None) -> Placement:
    """Connect, create the strategy, and set the precision of models built from now on.

    Args:
        requested: "" for what this host has, "local", or the name or gRPC address of a remote TPU.
        precision: "", "fp32" or "bf16".
        host: facts about this host (None: it has no TPU).

    Returns:
        The same each time; only the first call connects.

    Raises:
        TpuMagicsError: TensorFlow or the TPU is not available, or this process is connected to another one.
    """
    global _connection
    keras_settings.check_precision(precision)
    prepare(host if _connection is None else None)
    wanted = requested.strip() or _own(host)
    if _connection is None:
        _connection = _Connection(wanted, _KINDS[kind_of(wanted)](wanted, host))
        _enable_dumps(_connection.placed.device)
    elif requested.strip() and wanted != _connection.requested:
        raise _other(wanted, _connection.requested)
    missed = () if _connection.requested or host is None or host.device != "TPU" else (_RESTART_FOR_TPU,)
    return replace(
        _connection.placed, notes=(*_connection.placed.notes, *missed, *keras_settings.set_policy(precision))
    )


def _own(host: HostStatus | None) -> str:
    """The default: the TPU of this host, or none. An existing connection is kept."""
    if _connection is not None:
        return _connection.requested
    return LOCAL if host is not None and host.device == "TPU" else ""


def _enable_dumps(device: str) -> None:
    """Enable XLA's dumps before anything is compiled: XLA reads its flags once. This also initialises the devices, so
    with GPUs it waits for the run: memory growth can only be set before that."""
    import tensorflow as tf

    from tpu_magics.backends.tensorflow import observe

    if device == "TPU" or not tf.config.list_physical_devices("GPU"):
        observe.enable_dumps(device)


def kind_of(requested: str) -> str:
    """ "default", "tpu-local" or "tpu-remote", from a TPU's name."""
    return {"": DEFAULT, LOCAL: TPU_LOCAL}.get(requested, TPU_REMOTE)


def _other(wanted: str, up: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"This kernel trains on {_called(up)}, but {_called(wanted)} was requested.",
        "TensorFlow connects only once per process: existing variables would be on devices that are gone.",
        f"Restart the kernel and run %tpu_init --tpu {wanted} before any other TensorFlow code.",
    )


def _called(requested: str) -> str:
    return {"": "the default strategy, without a TPU", LOCAL: "this host's TPU"}.get(
        requested, f"the TPU {requested!r}"
    )


# -- without a TPU ----------------------------------------------------------------------------------------------------


def _default(_asked: str, _host: HostStatus | None) -> Placement:
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    where = "a GPU" if gpus else "the CPU"
    topology = f"one replica, on one of {gpus} GPUs" if gpus > 1 else "one replica" if gpus else ONE_REPLICA
    first = f"No TPU: using the default strategy on {where}. XLA compiles the steps (jit_compile=True), so ops that "
    rest = "XLA cannot compile fail here. Success here proves little for a TPU: use %tpu_check and %tpu_preflight."
    return Placement(DEFAULT, tf.distribute.get_strategy(), 1, topology, (first + rest,))


# -- a TPU ------------------------------------------------------------------------------------------------------------


def _local(_asked: str, host: HostStatus | None) -> Placement:
    if host is None or host.device != "TPU":
        raise TpuMagicsError(
            "This host has no usable TPU.",
            '"local" means a TPU in this machine; none was found in /sys, or PJRT_DEVICE=CPU is set.',
            "Choose a runtime with a TPU, or run %tpu_init without --tpu.",
        )
    refuse_broken(host, ("versions", "tpu", "in use"))
    import tensorflow as tf

    return _connect(tf.distribute.cluster_resolver.TPUClusterResolver(tpu=LOCAL), TPU_LOCAL)


def _remote(requested: str, _host: HostStatus | None) -> Placement:
    placed = _connect(resolve(requested), TPU_REMOTE)
    return replace(placed, problems=(NODE_ENDED,))


def _connect(resolver: Any, kind: str) -> Placement:
    import tensorflow as tf

    notes: tuple[str, ...] = ()
    try:
        tf.config.experimental_connect_to_cluster(resolver)
        topology = _earlier_topology(resolver)
        if topology is None:
            topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        else:
            notes = ("The TPU was already initialised in this notebook. It was not initialised again.",)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:
        raise no_tpu(error, kind) from error
    return Placement(kind, strategy, strategy.num_replicas_in_sync, _shape(topology), notes)


def _earlier_topology(resolver: Any) -> Any:
    """The topology of a TPU that this process initialised earlier; None if there is none or it cannot be read."""
    try:
        from tensorflow.python.tpu import tpu_strategy_util  # TensorFlow 2.21 keeps them by name

        return tpu_strategy_util.get_initialized_tpu_systems().get(resolver._tpu)
    except (ImportError, AttributeError):
        return None


def _shape(topology: Any) -> str:
    """A tf.tpu.Topology in words: its mesh is (x, y, z, cores of a chip)."""
    *mesh, cores = (int(size) for size in topology.mesh_shape)
    hosts, devices = topology.num_tasks, topology.num_tpus_per_task
    chips = "x".join(map(str, mesh))
    return f"chips {chips}, {plural(cores, 'TensorFlow device')} per chip, {devices} on each of {plural(hosts, 'host')}"


_KINDS: Mapping[str, Callable[[str, HostStatus | None], Placement]] = {
    DEFAULT: _default,
    TPU_LOCAL: _local,
    TPU_REMOTE: _remote,
}


# -- a remote TPU, with a time limit (TensorFlow has none) ------------------------------------------------------------

# Read in TensorFlow 2.21 (python/tpu/client/client.py): a name is looked up with the project and zone of the metadata
# server and the Cloud TPU API; an address ("grpc://host:port", port 8470 where it has none) is used unchanged.

LIMIT = 10.0  # seconds in total
_GRPC = "grpc://"
# RFC 9113, 3.4 and 6.5: the client preface, and an empty settings frame (its fourth byte is the type).
_PREFACE, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\4\0\0\0\0\0"


def resolve(requested: str, limit: float = LIMIT) -> Any:
    """A TPUClusterResolver whose address answers.

    Args:
        requested: a TPU's name or address.
        limit: seconds to try.

    Raises:
        TpuMagicsError: it cannot be resolved or does not answer, with what was tried.
    """
    started = time.monotonic()
    resolver, spec = _in_time(lambda: _look_up(requested), requested, limit)
    addresses = [address for job in spec for address in spec[job]]
    for address in addresses[:1]:
        _try(address, requested, max(1.0, limit - (time.monotonic() - started)))
    return resolver


def _look_up(requested: str) -> tuple[Any, dict[str, list[str]]]:
    import tensorflow as tf

    named = f"{_GRPC}{requested}" if ":" in requested and "://" not in requested else requested
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=named)
    return resolver, resolver.cluster_spec().as_dict()


def _in_time(work: Callable[[], Any], requested: str, limit: float) -> Any:
    """The result of `work`. After the time limit its thread keeps running, since look-ups cannot be stopped."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="tpu_magics-resolve", daemon=True)
    thread.start()
    thread.join(limit)
    if found:
        return found[0]
    raise _resolve_error(requested, failed[0] if failed else None, limit) from (failed[0] if failed else None)


def _resolve_error(requested: str, error: BaseException | None, limit: float) -> TpuMagicsError:
    said = f"{type(error).__name__}: {error}" if error else f"no answer within {limit:g} s"
    if requested.startswith(_GRPC):
        return TpuMagicsError(
            f"{requested} is not a valid TPU address.", f"Tried: reading it as grpc://host:port. {said}", _CHECK_THE_TPU
        )
    return TpuMagicsError(
        f"The TPU name {requested!r} could not be resolved.",
        "Tried: the metadata server of Google's cloud for project and zone, then the Cloud TPU API for the node's "
        f"address. {said}",
        _CHECK_THE_TPU,
    )


def _try(address: str, requested: str, limit: float) -> None:
    """Begin HTTP/2, as gRPC does, and wait for the server's settings: TensorFlow waits without limit for a server that
    accepts a connection and stays silent."""
    host, _, port = address.rpartition(":")
    started = time.monotonic()
    try:
        with socket.create_connection((host, int(port)), timeout=limit) as connection:
            connection.sendall(_PREFACE + _SETTINGS)
            connection.settimeout(max(1.0, limit - (time.monotonic() - started)))
            answer = connection.recv(len(_SETTINGS))
    except (OSError, ValueError) as error:
        raise _no_answer(requested, address, time.monotonic() - started, f"{type(error).__name__}: {error}") from error
    if answer[3:4] != _SETTINGS[3:4]:
        raise _no_answer(requested, address, time.monotonic() - started, "The server does not use gRPC.")


def _no_answer(requested: str, address: str, seconds: float, said: str) -> TpuMagicsError:
    tried = f"Tried: a grpc connection to {address}, for {seconds:.1f} s. {said}"
    return TpuMagicsError(f"The TPU {requested!r} does not answer.", tried, _CHECK_THE_TPU)


_CHECK_THE_TPU = (
    "Check the name (gcloud compute tpus list), the zone and the state. Google discontinued TPU nodes in April "
    "2025: on a TPU VM, run the notebook on the VM itself, with %tpu_init and without --tpu."
)


# -- cancellation -----------------------------------------------------------------------------------------------------


@contextmanager
def cancelling() -> Iterator[Callable[[], None]]:
    """Inside it, tf.functions can be cancelled between two of their ops (an XLA program is one op). Yields a function
    that cancels what is running, from any thread; later calls are not affected.

    Read in TensorFlow 2.21: tensorflow/python/eager/cancellation.py, which has no public name, and context.py, which
    asks it for the manager of each call. If they are missing, nothing can be cancelled.
    """
    try:
        from tensorflow.python.eager import cancellation

        theirs, given = cancellation.context, _CurrentManager(cancellation.CancellationManager)
    except (ImportError, AttributeError):
        yield _nothing
        return
    cancellation.context = lambda: theirs() or given.usable()
    try:
        yield given.cancel
    finally:
        cancellation.context = theirs


class _CurrentManager:
    """The manager for successive calls. TensorFlow cancels it when a call fails, also at the end of its data, and a
    call with a cancelled manager fails: then a new one is made."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.current = make()

    def usable(self) -> Any:
        if self.current.is_cancelled:
            self.current = self.make()
        return self.current

    def cancel(self) -> None:
        self.current.start_cancel()


def _nothing() -> None:
    pass
