"""Kernels for the tests of the magics: one for each module, reset between its tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .kernel import LOAD, Kernel, running_kernel


@pytest.fixture(scope="module")
def module_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """The kernel that the tests of a module share."""
    with running_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        kernel.run(LOAD).good()
        yield kernel


@pytest.fixture
def kernel(module_kernel: Kernel, tmp_path: Path) -> Iterator[Kernel]:
    """The module's kernel with no names of the person and no runs; afterwards no process of a run may be left."""
    with as_new(module_kernel, tmp_path) as kernel:
        yield kernel


@contextmanager
def as_new(kernel: Kernel, folder: Path) -> Iterator[Kernel]:
    """A kernel that other tests have used, for one more test in this folder."""
    if any(cell.count is None for cell in kernel.cells.values()):
        kernel.restart()  # a test that failed has left a cell that goes on
        kernel.run(LOAD).good()
    kernel.fresh(folder)
    yield kernel
    assert kernel.descendants() == [], "a process of the run is left"


@pytest.fixture
def own_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel of this test alone, with the magics loaded."""
    with running_kernel(tmp_path) as kernel:
        kernel.run(LOAD).good()
        yield kernel
