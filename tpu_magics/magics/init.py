"""`%tpu_init`: look, set the session's defaults, show one table.

What lives here: the order of it. What does not: looking (host/), the defaults (launch/session.py), the table
(panel/host.py).
"""

from __future__ import annotations

import sys

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host
from tpu_magics.launch import session
from tpu_magics.launch.alone import require_alone
from tpu_magics.magics.lab import say_hello
from tpu_magics.magics.show import show_table
from tpu_magics.panel.host import host_table


def initialise(
    precision: str | None,
    processes: int | None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
    framework: str = "auto",
    tpu: str = "",
) -> Host:
    """Set the session up and show the table; then import the framework, so that the first run does not wait for it."""
    current = session.current
    host = session.initialise(precision, processes, cache, spmd, collective_timeout, framework, tpu)
    show_table(host_table(host, processes, spmd, current.placed))
    say_hello()
    if current.placed is not None:
        return host
    if cache:
        print(f"tpu_magics: {session.cache_text(host)}", flush=True)
    if host.versions.get("torch_xla"):
        if "torch_xla" not in sys.modules and "tensorflow" not in sys.modules:
            print("tpu_magics: importing torch_xla, so that the first run need not wait for it ...", flush=True)
        try:
            require_alone()
            current.backend.prepare()
        except TpuMagicsError as error:
            print(f"tpu_magics: {error}", flush=True)
        for problem in current.backend.quiet_problems():
            print(f"tpu_magics: {problem}", flush=True)
    return host
