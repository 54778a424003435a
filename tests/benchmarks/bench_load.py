"""How long `%load_ext tpu_magics` takes once IPython is up, and which modules it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from statistics import median
from typing import Any

from tests.benchmarks import report

TITLE = "Loading the extension"
TARGET = 100.0  # milliseconds
FRAMEWORKS = ("torch", "torch_xla", "tensorflow", "jax", "accelerate", "ray")


# The process imports nothing of this project before: its modules would not be among those that the extension brings.
LOAD = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
before = set(sys.modules)
start = time.perf_counter()
shell.run_line_magic("load_ext", "tpu_magics")
seconds = time.perf_counter() - start
assert "tpu_magics" in shell.extension_manager.loaded, "the extension was not loaded"
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def load() -> dict[str, Any]:
    """In a fresh process: bring IPython up, load the extension, and tell what came with it."""
    told = subprocess.run([sys.executable, "-c", LOAD], check=True, capture_output=True, text=True, timeout=60)
    loaded: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return loaded


def measure(rounds: int = 11) -> list[dict[str, Any]]:
    """One row. The first process is left out: it may have compiled the package's bytecode."""
    first, *loads = [load() for _ in range(rounds + 1)]
    times = [1000 * each["seconds"] for each in loads]
    modules = Counter(name.partition(".")[0] for name in first["modules"])
    return [
        {
            "what": "%load_ext tpu_magics",
            "ms, median": median(times),
            "ms, slowest": max(times),
            "modules it brings": ", ".join(f"{name} ({count})" for name, count in modules.items()),
            "frameworks among them": ", ".join(name for name in FRAMEWORKS if name in modules) or "none",
        }
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    took, brought = rows[0]["ms, median"], rows[0]["frameworks among them"]
    return [
        f"Target: less than {TARGET:.0f} ms after IPython is up: {report.met(took < TARGET)} ({took:.0f} ms).",
        f"Target: none of {', '.join(FRAMEWORKS)}: {report.met(brought == 'none')}.",
    ]
