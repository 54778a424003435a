"""Records of a TensorFlow run: steps, compiles with their causes, retraces, logged values, precision."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpu_magics.runs import events

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
def observing(writer: EventWriter, watching: ObserverConfig) -> Iterator[TensorFlowObserver]:
    """Observe this process until the block ends. Patches methods of TensorFlow's and Keras' classes."""
    from pathlib import Path

    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context

    from tpu_magics.backends.tensorflow.observe import hooks
    from tpu_magics.backends.tensorflow.observe.dumps import Dumps, enable
    from tpu_magics.backends.tensorflow.observe.observer import TensorFlowObserver
    from tpu_magics.runs import value_log

    def warn(text: str) -> None:
        writer.write(events.Warned(round(time.time(), 3), writer.rank, code="not-observed", text=text))

    found = enable(watching.device)
    dumps = Dumps(found.folder, context.context().has_function, found.theirs) if found.folder is not None else None
    if dumps is not None:
        dumps.empty()  # dumps of code outside a run
    else:
        warn(f"Compiles are not recorded: {found.reason}.")
    libraries = tuple(str(Path(one.__file__).parent) for one in (tf, keras))
    observer = TensorFlowObserver(writer, watching, dumps, libraries)
    with hooks.install_hooks(observer) as missing:
        for text in missing:
            warn(f"Not recorded: {text}.")
        try:
            with value_log.recorded_by(observer.log):
                yield observer
        finally:
            observer.closed = True
