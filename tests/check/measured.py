"""A program that measures torch_xla on XLA:CPU, in a process of its own.

What lives here: running one, and what it found. What does not: the programs; each stands in the test of its rules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def measured(program: str) -> dict[str, Any]:
    """What the program prints behind "FOUND ", as JSON. No setting of this process's XLA reaches it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "PT_XLA"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={**environment, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.partition("FOUND ")[2])
    return found
