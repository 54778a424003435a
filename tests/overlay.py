"""TensorFlow for tests, which do not import it: it lies in a folder of its own and does not go beside torch_xla.

What lives here: a program that is run with it in a process of its own, and what it reports. What does not: programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TENSORFLOW = ROOT / ".venv" / "tensorflow"  # made by scripts/install.py


def python_path(*before: Path) -> str:
    """PYTHONPATH with TensorFlow on it; the test is skipped where there is none."""
    require()
    return os.pathsep.join(map(str, (*before, TENSORFLOW, ROOT)))


def require() -> None:
    """Skip the test where TensorFlow is not there."""
    if not TENSORFLOW.is_dir():
        pytest.skip("TensorFlow is not in .venv/tensorflow, where `make` puts it")


def run(program: Path, *words: str | Path, cwd: Path | None = None, **environment: str) -> str:
    """What a program prints that must end well; shown with its errors where it does not."""
    variables = {**os.environ, "PYTHONPATH": python_path(), **environment}
    command = [sys.executable, str(program), *map(str, words)]
    done = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def report(program: Path, *words: str | Path, cwd: Path | None = None, **environment: str) -> Any:
    """What a program reports: the JSON in its last line."""
    return json.loads(run(program, *words, cwd=cwd, **environment).splitlines()[-1])
