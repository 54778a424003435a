"""How programs of tests that use jax compile what they have lowered, for TPUs that are not there.

Such a program runs in a process of its own, with this folder on its path.
"""

from __future__ import annotations

import io
from typing import Any

import jax
import numpy as np


def compiled(lowered: Any, devices: Any) -> Any:
    """Through the client: jax 0.7.2 asks for layouts that a compile-only client of libtpu 0.0.21.1 does not have."""
    if tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 8):
        return lowered.compile()
    from jax._src import compiler
    from jax._src.lib import _jax

    code = io.BytesIO()
    lowered.compiler_ir().operation.write_bytecode(code)
    options = compiler.get_compile_options(1, len(devices), device_assignment=np.arange(len(devices))[None])
    return devices[0].client.compile(code.getvalue(), _jax.DeviceList(tuple(devices)), options)
