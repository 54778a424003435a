"""Keras files (`.keras`, `.weights.h5`) that also hold the seeds of random layers."""

# Keras 3.15 writes the optimizer's variables, with its iterations, into both kinds of file, but not the seeds of
# Dropout and similar layers (SeedGenerator.state). Without them training does not continue identically. They are added
# as an attribute of a `.weights.h5`, and as a member of a `.keras`. Keras ignores both.

from __future__ import annotations

import json
import warnings
import zipfile
from importlib import import_module
from typing import Any

from tpu_magics.backends.tensorflow.checkpoint_names import KERAS, WEIGHTS, ending
from tpu_magics.backends.tensorflow.checkpoint_state import seeds_of, set_seeds

_SEEDS = "tpu_magics.seeds"


def write_file(model: Any, path: str) -> None:
    """The file format follows from the ending."""
    WRITERS[ending(path)](model, path)


def read_file(model: Any, path: str) -> None:
    """Read weights, seeds, and the optimizer if the file has it."""
    with warnings.catch_warnings():
        # Keras warns if the file has no optimizer; here that is expected.
        warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
        model.load_weights(path)
    set_seeds(model, _read_seeds(path))


def _write_keras(model: Any, path: str) -> None:
    model.save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{_SEEDS}.json", _seeds_text(model))


def _write_weights(model: Any, path: str) -> None:
    model.save_weights(path)
    with _h5py().File(path, "a") as file:
        file.attrs[_SEEDS] = _seeds_text(model)


WRITERS = {KERAS: _write_keras, WEIGHTS: _write_weights}


def _seeds_text(model: Any) -> str:
    return json.dumps([one.numpy().tolist() for one in seeds_of(model)])


def _h5py() -> Any:
    """Keras writes weights with it, so it is installed with Keras."""
    return import_module("h5py")


def _read_seeds(path: str) -> list[Any]:
    """Seeds in a file that `save` wrote; none in any other file."""
    if path.endswith(KERAS):
        with zipfile.ZipFile(path) as archive:
            has = f"{_SEEDS}.json" in archive.namelist()
            found = json.loads(archive.read(f"{_SEEDS}.json")) if has else []
    else:
        with _h5py().File(path, "r") as file:
            found = json.loads(file.attrs.get(_SEEDS, "[]"))
    return list(found)
