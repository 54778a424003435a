"""Reading and writing runs needs the standard library only: it is imported by every notebook and every worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import sys
import tpu_magics
before = set(sys.modules)
import tpu_magics.runs.events, tpu_magics.runs.files, tpu_magics.runs.folder, tpu_magics.runs.meter
import tpu_magics.runs.reader, tpu_magics.runs.summary, tpu_magics.runs.writer
tops = {name.partition('.')[0] for name in set(sys.modules) - before}
print(sorted(tops - set(sys.stdlib_module_names) - {'tpu_magics'}))
print(sorted(name for name in set(sys.modules) - before if name.startswith('tpu_magics.')))
"""


def test_runs_imports_the_standard_library_only() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    foreign, ours = done.stdout.splitlines()
    assert foreign == "[]"
    assert all(name.startswith(("'tpu_magics.runs", "'tpu_magics.errors")) for name in ours.strip("[]").split(", "))
