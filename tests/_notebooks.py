"""A pytest plugin for nbval: what each notebook's kernel has in its environment. Loaded with `-p tests._notebooks`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from tests import forks, framework, overlay
from tests.xla_flags import QUICK

# A Ray cluster and a host that is lost (in short: tests/launch/pods); guides whose forms are in tests/programs/cells.
LONG = (
    "08_many_hosts",
    "01_accelerate_guide",
    "02_simple_nlp",
    "03_simple_cv",
    "04_transformers_tpu",
    "05_tensorflow_tpu",
)
# What the notebooks without TensorFlow import, in 8 CPU seconds: their kernels are forks of a process that has it.
IMPORTED = "ipykernel.kernelapp torch_xla accelerate transformers.models.bert.modeling_bert sklearn.datasets"
LAUNCHER = "jupyter_client.provisioning.local_provisioner.launch_kernel"


def uses_tensorflow(notebook: Path) -> bool:
    return "tensorflow" in notebook.stem


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A notebook of TorchTPU runs where TorchTPU is, and the others where torch_xla is."""
    if collection_path.suffix != ".ipynb":
        return None
    return True if ("torch_tpu" in collection_path.stem) != framework.TORCH_TPU else None


def environment(notebook: Path) -> dict[str, str]:
    if framework.TORCH_TPU:
        return {}
    tensorflow = {"PYTHONPATH": overlay.python_path()} if uses_tensorflow(notebook) else {}
    return {"XLA_FLAGS": QUICK, **tensorflow}


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.suffix == ".ipynb" and item.path.stem in LONG:
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path.suffix == ".ipynb" and uses_tensorflow(item.path):
        overlay.require()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """nbval starts a notebook's kernel with the first of its cells."""
    if item.path.suffix != ".ipynb" or (uses_tensorflow(item.path) and not overlay.has_tensorflow()):
        return (yield)
    with ExitStack() as patches:
        patches.enter_context(mock.patch.dict(os.environ, environment(item.path)))
        if not uses_tensorflow(item.path) and not framework.TORCH_TPU:
            patches.enter_context(mock.patch(LAUNCHER, partial(forks.kernel, IMPORTED)))
        return (yield)
