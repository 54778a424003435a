"""Kernels for the tests of the magics: one of each kind for all modules, made as new between tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests import forks
from tests._notebooks import LAUNCHER

from .kernel import KERNELS, LOAD, OWN, Kernel, running_kernel

Kernels = Callable[[str], Kernel]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    """The kernels that tests share, by name (see KERNELS); each is started when it is first asked for, and has folders
    of its own for what is kept and for what is temporary."""
    with ExitStack() as running:

        @cache
        def named(name: str) -> Kernel:
            folder = tmp_path_factory.mktemp(f"{name}-kernel")
            (folder / "tmp").mkdir()
            own = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
            with forked() if name == OWN else nullcontext():
                kernel = running.enter_context(running_kernel(folder, **own, **KERNELS[name]()))
            kernel.run(LOAD).good()
            return kernel

        yield named


@pytest.fixture
def kernel(kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    """The shared kernel with no names of the person and no runs; afterwards no process of a run may be left."""
    with as_new(kernels(OWN), tmp_path) as kernel:
        yield kernel


@contextmanager
def loaded_anew(kernel: Kernel, folder: Path) -> Iterator[Kernel]:
    """The same with the extension loaded anew, so that no page of a test before listens any more."""
    with as_new(kernel, folder) as one:
        one.run("%unload_ext tpu_magics").good()
        one.messages.clear()
        one.run(LOAD).good()
        yield one


def forked() -> AbstractContextManager[Any]:
    """Kernels that begin here are forks of one process that has imported what most cells need."""
    return mock.patch(LAUNCHER, partial(forks.kernel, "ipykernel.kernelapp torch_xla transformers.trainer"))


@contextmanager
def as_new(kernel: Kernel, folder: Path) -> Iterator[Kernel]:
    """A kernel that other tests have used, for one more test in this folder."""
    if any(cell.count is None for cell in kernel.cells.values()):
        kernel.restart()  # a test that failed has left a cell that goes on
        kernel.run(LOAD).good()
    kernel.fresh(folder)
    yield kernel
    assert kernel.descendants() == [], "a process of the run is left"


@pytest.fixture(scope="module")
def module_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel of one module's tests, with the magics and what these tests load; `loaded`: the modules at its start."""
    with running_kernel(tmp_path_factory.mktemp("kernel")) as kernel:
        kernel.run(f"{LOAD}\nimport sys\nloaded = set(sys.modules)").good()
        yield kernel


@pytest.fixture
def own_kernel(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel of this test alone, with torch_xla imported and the magics loaded."""
    with forked(), running_kernel(tmp_path) as kernel:
        kernel.run(LOAD).good()
        yield kernel
