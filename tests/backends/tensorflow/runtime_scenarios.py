"""Initialises TensorFlow in different environments for test_runtime.py, in a process without torch_xla."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tests.backends.tensorflow import fake_tpu_resolver as fake
from tests.host import fake_hosts
from tpu_magics.backends.base import Placement
from tpu_magics.backends.tensorflow import keras_settings, runtime
from tpu_magics.errors import HostProblem, TpuMagicsError
from tpu_magics.host import inspect_host

fake.logical_cpus()


@dataclass
class Host:
    """As far as runtime.py asks."""

    device: str = "TPU"
    problems: tuple[HostProblem, ...] = field(default_factory=tuple)


def told(placed: Placement) -> dict[str, Any]:
    return {
        "kind": placed.kind,
        "replicas": placed.replicas,
        "device": placed.device,
        "topology": placed.topology,
        "notes": list(placed.notes),
        "strategy": type(placed.strategy).__name__,
    }


def error_of(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except TpuMagicsError as error:
        return [error.what, error.why, error.todo]
    return []


def fresh() -> None:
    """As in a new kernel."""
    runtime._placed = None
    keras.config.set_dtype_policy("float32")


def without_tpu() -> Any:
    first = runtime.initialise("", Host("CPU"))
    second = runtime.initialise("", Host("CPU"))
    third = runtime.initialise("", Host("TPU"))  # what is up stays
    same = first.strategy is second.strategy is third.strategy is tf.distribute.get_strategy()
    return {**told(first), "same": same, "missed": list(third.notes[1:])}


def local(slice_: fake.FakeSlice) -> Any:
    with fake.present(slice_):
        first = runtime.initialise("", Host())
        second = runtime.initialise("", Host())
        trained = train_in(first.strategy) if slice_.mesh[3] > 1 else None
    same = first.strategy is second.strategy
    facts = {"same": same, "initialised": slice_.initialised, "master": slice_.connected[0].master()}
    return {**told(first), **facts, "trained": trained}


def train_in(strategy: Any) -> float:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    found = model.fit(np.ones((16, 4), "f"), np.ones((16, 2), "f"), batch_size=16, verbose=0)
    return float(found.history["loss"][0])


def recorded(build: Callable[[Path], fake_hosts.FakeHost], slice_: fake.FakeSlice) -> Any:
    """On a host whose variables, devices and packages were recorded; then with TensorFlow's package for a TPU."""
    with tempfile.TemporaryDirectory() as folder, fake.present(slice_):
        there = build(Path(folder))
        known = {**there.versions, "keras": "3.15.1"}
        as_it_is = inspect_host(there.environ, there.root, there.modules, known, "tensorflow")
        refused = error_of(lambda: runtime.initialise("", as_it_is))
        fresh()
        known |= {"tensorflow": None, "tensorflow-cpu": None, "tensorflow-tpu": "2.20.0"}
        mended = inspect_host(there.environ, there.root, there.modules, known, "tensorflow")
        return {**told(runtime.initialise("", mended)), "refused": refused, "place": mended.environment.key}


def initialised_before() -> Any:
    with fake.present(fake.v3_8()) as slice_:
        slice_.initialize(tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local"))
        return {**told(runtime.initialise("", Host())), "initialised": slice_.initialised}


def held() -> Any:
    slice_ = fake.v3_8()
    slice_.error = RuntimeError(f"{fake.HELD}\nmore lines")
    with fake.present(slice_):
        return error_of(lambda: runtime.initialise("", Host()))


def plain_tensorflow_really() -> Any:
    """No fake: this TensorFlow has no kernels for a TPU, and says so itself."""
    return error_of(lambda: runtime.initialise("", Host()))


def problems_of_the_host() -> Any:
    def refused(about: str, state: str = "broken", device: str = "TPU") -> Any:
        problem = HostProblem(about, "What.", "Why.", "command", "then", state)
        with fake.present(fake.v3_8()):
            fresh()
            return error_of(lambda: runtime.initialise("", Host(device, (problem,))))

    return {
        "versions": refused("versions"),
        "in use": refused("in use"),
        "tpu": refused("tpu"),
        "a warning": refused("versions", "warning"),
        "in use, without a TPU": refused("in use", device="CPU"),
        "versions, without a TPU": refused("versions", device="CPU"),
    }


def alone() -> Any:
    sys.modules["torch_xla"] = types.ModuleType("torch_xla")
    try:
        return error_of(lambda: runtime.initialise("", Host("CPU")))
    finally:
        del sys.modules["torch_xla"]


def other_keras_backend() -> Any:
    with mock.patch.object(keras.backend, "backend", lambda: "jax"):
        return error_of(runtime.prepare)


def precisions() -> Any:
    dense = keras.layers.Dense
    before = keras.Sequential([keras.Input((4,)), dense(2)], name="before")
    found: dict[str, Any] = {"downcast": error_of(lambda: runtime.initialise("bf16-downcast", Host("CPU")))}
    found["refused leaves nothing"] = runtime._placed is None
    found["notes"] = list(runtime.initialise("bf16", Host("CPU")).notes[1:])
    found["again"] = list(runtime.initialise("bf16", Host("CPU")).notes[1:])
    after = keras.Sequential([keras.Input((4,)), dense(2)], name="after")
    layer = after.layers[0]
    found["after"] = [layer.compute_dtype, layer.variable_dtype, before.layers[0].compute_dtype]
    runtime.initialise("", Host("CPU"))
    found["nothing asked"] = keras.config.dtype_policy().name
    found["kept"] = keras_settings.models_with_other_policy(
        {"before": before, "after": after, "module": tf.Module()}, "bf16"
    )
    with keras_settings.within_precision("fp32"):
        found["within"] = keras.config.dtype_policy().name
    found["put back"] = keras.config.dtype_policy().name
    try:
        with keras_settings.within_precision("fp32"):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        found["put back after an interrupt"] = keras.config.dtype_policy().name
    runtime.initialise("fp32", Host("CPU"))
    found["fp32"] = keras.config.dtype_policy().name
    return found


SCENARIOS: dict[str, Callable[[], Any]] = {
    "without": without_tpu,
    "v3-8": lambda: local(fake.v3_8()),
    "v5litepod-8": lambda: local(fake.v5litepod_8()),
    "colab v5e-1": lambda: recorded(fake_hosts.colab_v5e_1, fake.FakeSlice((1, 1, 1, 1))),
    "kaggle v5e-8": lambda: recorded(fake_hosts.kaggle_v5e_8, fake.v5litepod_8()),
    "colab without": lambda: recorded(fake_hosts.colab_cpu, fake.v5litepod_8()),
    "initialised before": initialised_before,
    "held": held,
    "plain": plain_tensorflow_really,
    "problems": problems_of_the_host,
    "alone": alone,
    "keras": other_keras_backend,
    "precision": precisions,
}


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name, scenario in SCENARIOS.items():
        fresh()
        found[name] = scenario()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
