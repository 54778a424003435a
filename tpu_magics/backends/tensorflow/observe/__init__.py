"""Records of a TensorFlow run: steps, compiles with their causes, retraces, logged values, precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.tensorflow.observe.observer import TensorFlowObserver
    from tpu_magics.runs.writer import EventWriter

__all__ = ["enable_dumps", "observing"]


def enable_dumps(device: str = "CPU") -> None:
    """Make XLA dump its compiles from now on. Call it before anything is compiled; once per process is enough."""
    from tpu_magics.backends.tensorflow.observe import dumps

    dumps.enable(device)


@contextmanager
def observing(writer: EventWriter, config: ObserverConfig) -> Iterator[TensorFlowObserver]:
    """Observe this process until the block ends. Patches methods of TensorFlow's and Keras' classes."""
    from pathlib import Path

    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context

    from tpu_magics.backends.tensorflow.observe import hooks
    from tpu_magics.backends.tensorflow.observe.dumps import Dumps, enable
    from tpu_magics.backends.tensorflow.observe.observer import TensorFlowObserver

    setup = enable(config.device)
    dumps = Dumps(setup.folder, context.context().has_function, setup.theirs) if setup.folder is not None else None
    libraries = tuple(str(Path(one.__file__).parent) for one in (tf, keras))
    observer = TensorFlowObserver(writer, config, dumps, libraries)
    if dumps is not None:
        dumps.empty()  # dumps of code outside a run
    else:
        observer.warn("not-observed", f"Compiles are not recorded: {setup.reason}.")
    with hooks.install_hooks(observer) as missing:
        for text in missing:
            observer.warn("not-observed", f"Not recorded: {text}.")
        with observer.active():
            yield observer
