"""Runs a program that measures torch_xla on XLA:CPU, in its own process."""

from __future__ import annotations

import json
import os
from typing import Any

from tests import forks


def measurements(program: str) -> dict[str, Any]:
    """What the program prints behind "FOUND ", as JSON. No setting of this process's XLA reaches it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "PT_XLA"))}
    told = forks.run("torch_xla", program, environment={**environment, "PJRT_DEVICE": "CPU"})
    found: dict[str, Any] = json.loads(told.partition("FOUND ")[2])
    return found
