"""A TPU that is not here, for TensorFlow: what initialising gives and what the strategy says, made of recorded facts.

What is real: TensorFlow, its TPUClusterResolver (for "local" it needs no TPU: `master()` is "", `cluster_spec()` is
empty; read in TensorFlow 2.21, python/distribute/cluster_resolver/tpu), its registry of initialised TPUs
(python/tpu/tpu_strategy_util.py) and tf.tpu.experimental.Topology. What is put in its place:
- `initialize_tpu_system`: gives the Topology of a slice. Its mesh is (x, y, z, cores of a chip), and a task is a host
  (python/tpu/topology.py). A v3-8 is 2x2x1 chips of 2 cores on one host, 8 TensorFlow devices; a v5litepod-8 is 2x4
  chips of one core (facts.md, the table of generations: v2 and v3 have two cores that are replicas, v5e and v6e one).
- `TPUStrategy`: MirroredStrategy over as many logical CPUs, which like it has several replicas and cannot be compiled
  by `jit_compile=True` (facts.md, TensorFlow).
- `experimental_connect_to_cluster`: does nothing, as the real one does for a local master (python/eager/remote.py).

Errors are the real ones: initialising with a TensorFlow that has no kernels for a TPU raises by itself "TPUs not found
in the cluster. Failed in initialization: No OpKernel was registered to support Op 'ConfigureDistributedTPU'"
(tensorflow/tensorflow#96203). That of a TPU which another process holds is libtpu's (facts.md, Error texts).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

HELD = "The TPU is already in use by process with pid 4321. Not attempting to load libtpu.so in this process."


@dataclass
class FakeSlice:
    """`mesh`: chips along x, y, z and TensorFlow devices of a chip; `error`: what initialising raises; `initialised`:
    how often it was; `connected`: resolvers that were connected to."""

    mesh: tuple[int, int, int, int]
    error: Exception | None = None
    initialised: int = 0
    connected: list[Any] = field(default_factory=list)

    @property
    def devices(self) -> int:
        return int(np.prod(self.mesh))

    def topology(self) -> Any:
        import tensorflow as tf

        coordinates = np.array([list(np.ndindex(*self.mesh))], np.int32)
        return tf.tpu.experimental.Topology(mesh_shape=self.mesh, device_coordinates=coordinates)

    def initialize(self, resolver: Any) -> Any:
        from tensorflow.python.tpu import tpu_strategy_util

        if self.error is not None:
            raise self.error
        self.initialised += 1
        topology = tpu_strategy_util._INITIALIZED_TPU_SYSTEMS[resolver._tpu] = self.topology()
        return topology

    def strategy(self) -> type:
        """A class, as Keras asks whether a strategy is one of it."""
        import tensorflow as tf

        devices = [f"CPU:{number}" for number in range(self.devices)]

        class FakeTPUStrategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
            def __init__(self, _resolver: Any) -> None:
                super().__init__(devices)

        return FakeTPUStrategy


def v3_8() -> FakeSlice:
    return FakeSlice((2, 2, 1, 2))


def v5litepod_8() -> FakeSlice:
    return FakeSlice((2, 4, 1, 1))


def logical_cpus(count: int = 8) -> None:
    """Before anything of TensorFlow's runs: as many logical CPUs as the slice has devices."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


@contextmanager
def present(slice_: FakeSlice) -> Iterator[FakeSlice]:
    """Within it TensorFlow finds the slice, and no TPU was initialised before."""
    import tensorflow as tf
    from tensorflow.python.tpu import tpu_strategy_util

    with ExitStack() as stack:
        for place, name, fake in (
            (tf.tpu.experimental, "initialize_tpu_system", slice_.initialize),
            (tf.distribute, "TPUStrategy", slice_.strategy()),
            (tf.config, "experimental_connect_to_cluster", slice_.connected.append),
        ):
            stack.enter_context(mock.patch.object(place, name, fake))
        stack.enter_context(mock.patch.dict(tpu_strategy_util._INITIALIZED_TPU_SYSTEMS, clear=True))
        yield slice_
