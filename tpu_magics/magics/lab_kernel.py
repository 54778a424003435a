"""The kernel's host, and whether it answers while a cell runs, for the JupyterLab extension."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from tpu_magics.panel.protocol import KernelHost


def known_host() -> KernelHost | None:
    """Where this kernel trains; None before it was looked at."""
    session = sys.modules.get("tpu_magics.launch.session")
    if session is None or session.current.host is None:
        return None
    from tpu_magics.panel.host import host_summary

    current = session.current
    with contextlib.suppress(Exception):
        return host_summary(current.host, current.processes, current.spmd, current.placed, current.pod)
    return None


def has_subshells(kernel: Any) -> bool:
    """Whether front ends can send messages past any busy cell (ipykernel 7). Without them, a cell is heard past only
    while its thread waits for a run, and so looks for messages itself (mailbox.py)."""
    return bool(getattr(kernel, "_supports_kernel_subshells", False))
