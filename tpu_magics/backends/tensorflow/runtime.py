"""Where TensorFlow trains: this host's TPU, or the default strategy. And how its functions are cancelled when the user
interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tpu_magics.backends.base import DEFAULT, TPU_LOCAL, Placement
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
_placed: Placement | None = None


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


def initialise(precision: str = "", host: HostStatus | None = None) -> Placement:
    """Connect, create the strategy, and set the precision of models built from now on.

    Args:
        precision: "", "fp32" or "bf16".
        host: facts about this host (None: it has no TPU).

    Returns:
        The same each time; only the first call connects.

    Raises:
        TpuMagicsError: TensorFlow or the TPU is not available.
    """
    global _placed
    keras_settings.check_precision(precision)
    prepare(host if _placed is None else None)
    tpu_host = host if host is not None and host.device == "TPU" else None
    if _placed is None:
        _placed = _default() if tpu_host is None else _local(tpu_host)
        _enable_dumps(_placed.device)
    missed = (_RESTART_FOR_TPU,) if tpu_host is not None and _placed.kind == DEFAULT else ()
    return replace(_placed, notes=(*_placed.notes, *missed, *keras_settings.set_policy(precision)))


def _enable_dumps(device: str) -> None:
    """Enable XLA's dumps before anything is compiled: XLA reads its flags once. This also initialises the devices, so
    with GPUs it waits for the run: memory growth can only be set before that."""
    import tensorflow as tf

    from tpu_magics.backends.tensorflow import observe

    if device == "TPU" or not tf.config.list_physical_devices("GPU"):
        observe.enable_dumps(device)


# -- without a TPU ----------------------------------------------------------------------------------------------------


def _default() -> Placement:
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    where = "a GPU" if gpus else "the CPU"
    topology = f"one replica, on one of {gpus} GPUs" if gpus > 1 else "one replica" if gpus else ONE_REPLICA
    first = f"No TPU: using the default strategy on {where}. XLA compiles the steps (jit_compile=True), so ops that "
    rest = "XLA cannot compile fail here. Success here proves little for a TPU: use %tpu_check and %tpu_preflight."
    return Placement(DEFAULT, tf.distribute.get_strategy(), 1, topology, (first + rest,))


# -- a TPU ------------------------------------------------------------------------------------------------------------


def _local(host: HostStatus) -> Placement:
    refuse_broken(host, ("versions", "tpu", "in use"))
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
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
        raise no_tpu(error) from error
    return Placement(TPU_LOCAL, strategy, strategy.num_replicas_in_sync, _shape(topology), notes)


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
