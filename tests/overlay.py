"""TensorFlow for tests, which do not import it: it is in a folder of its own, because it cannot share a process with
torch_xla. Programs with TensorFlow run in forks of a process that has imported it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests import forks

ROOT = Path(__file__).resolve().parent.parent
# In the environment whose Python runs the tests; made by scripts/install.py in .venv, by scripts/hosts.py elsewhere.
FOLDERS = Path(sys.prefix)
TENSORFLOW = FOLDERS / "tensorflow"
OLD_KERNEL = FOLDERS / "ipykernel6"
COLAB_COMPILER = FOLDERS / "preflight-colab"
FRAMEWORKS = FOLDERS / "frameworks" / "site-packages"
LIBRARIES = FOLDERS / "libraries" / "site-packages"


def python_path(*before: Path) -> str:
    """PYTHONPATH with TensorFlow on it; the test is skipped where there is none."""
    require()
    folders = [TENSORFLOW] if TENSORFLOW.is_dir() else []
    return os.pathsep.join(map(str, (*before, *folders, ROOT)))


def frameworks_path(libraries: bool = False) -> str:
    """PYTHONPATH with Lightning on it, and with the libraries that take long to import."""
    return os.pathsep.join(map(str, (ROOT, FRAMEWORKS, *([LIBRARIES] if libraries else []))))


def has_tensorflow() -> bool:
    """In its folder, or, as on Kaggle, among the packages."""
    return TENSORFLOW.is_dir() or importlib.util.find_spec("tensorflow") is not None


def require() -> None:
    """Skip the test where TensorFlow is not there."""
    if not has_tensorflow():
        pytest.skip("TensorFlow is not in .venv/tensorflow, where `make` puts it")


def is_colab() -> bool:
    """Whether the environment itself is as Colab's TPU image (see tests/hosts/colab.txt)."""
    return metadata.version("ipykernel") == "6.17.1"


def is_host() -> bool:
    """Whether the environment is one of scripts/hosts.py. Such a one stands for itself alone: what .venv tests with
    Colab's packages from an overlay, Colab's own environment tests with its own, and Kaggle has not."""
    return FOLDERS.parent == ROOT / ".hosts"


def output_of(command: str) -> str:
    """The right side of an assignment in a cell that takes what a command prints."""
    if is_colab() and sys.version_info >= (3, 12):  # IPython 7.34 does not know `name = !command` there
        return f"get_ipython().getoutput({command!r})"
    return f"!{command}"


def tensorflow_version() -> str:
    """ "2.21.0"."""
    folders = [str(TENSORFLOW)] if TENSORFLOW.is_dir() else sys.path
    return next(metadata.distributions(name="tensorflow-cpu", path=folders)).version


def old_kernel() -> tuple[Path, ...]:
    """The folder of Colab's older kernel; nothing where it is the environment's own."""
    if is_colab():
        return ()
    assert OLD_KERNEL.is_dir(), "`make` installs the older kernel into .venv/ipykernel6"
    return (OLD_KERNEL,)


def run(program: Path, *words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """What a program prints that must end well, in a fork of a process that has TensorFlow."""
    variables = {**os.environ, "PYTHONPATH": python_path(), **environment}
    return forks.run("tensorflow keras", program, *words, cwd=cwd, environment=variables, path=python_path())


def report(program: Path, *words: str | Path, cwd: Path | None = None, **environment: str) -> Any:
    """What a program reports: the JSON in its last line."""
    return last_json(run(program, *words, cwd=cwd, **environment))


def last_json(printed: str) -> Any:
    """The JSON in the last line of what a program printed."""
    return json.loads(printed.splitlines()[-1])
