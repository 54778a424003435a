"""`%tpu_init`: detect the host, set the session's defaults, show one table."""

from __future__ import annotations

import logging
import sys

from tpu_magics.backends import frameworks
from tpu_magics.backends.torch_xla.import_guard import require_alone
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host
from tpu_magics.launch import session, tee
from tpu_magics.magics.display import show_table
from tpu_magics.magics.lab import say_hello
from tpu_magics.magics.pod import rehearsed_slice, wanted_slice
from tpu_magics.panel.host import host_table
from tpu_magics.panel.pod import pod_table


def initialise(
    precision: str | None,
    processes: int | None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
    framework: str = "auto",
    hosts: str = "",
    target: str = "",
    checkpoints: str | None = None,
    tpu_branch: bool | None = None,
    stands_for: str = "",
) -> Host:
    """Set up the session and show the table; then import the framework, so that the first run starts faster."""
    current = session.current
    settings = (precision, processes, cache, spmd, collective_timeout, framework, hosts, target, checkpoints)
    host = init(*settings, tpu_branch, stands_for)
    chosen = current.torch if host.framework == "torch" else None
    show_table(host_table(host, current.processes, spmd, current.placed, current.pod, chosen))
    if current.pod is not None:
        show_table(pod_table(current.pod))
    say_hello()
    if current.checkpoints:
        print(f"tpu_magics: runs save checkpoints in {current.checkpoints}; --resume goes on from them.", flush=True)
    if current.placed is not None:
        return host
    if cache:
        print(f"tpu_magics: {session.cache_text(host)}", flush=True)
    package = current.torch.package
    if host.versions.get(package):
        if package not in sys.modules and not frameworks.LOCAL.is_imported:
            print(f"tpu_magics: importing {package} now, so that the first run starts faster ...", flush=True)
        try:
            require_alone()
            frameworks.prepared.update({frameworks.DEFAULT.name} - frameworks.imported())
            handlers = list(logging.root.handlers)
            with tee.filtered():
                current.backend.prepare()
            logging.root.handlers[:] = handlers  # a warning of torch_xla adds one, and basicConfig() then does nothing
        except TpuMagicsError as error:
            print(f"tpu_magics: {error}", flush=True)
        for problem in current.backend.randomness.deferral_problems():
            print(f"tpu_magics: {problem}", flush=True)
    return host


def init(
    precision: str | None = None,
    processes: int | None = None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
    framework: str = "auto",
    hosts: str = "",
    target: str = "",
    checkpoints: str | None = None,
    tpu_branch: bool | None = None,
    stands_for: str = "",
) -> Host:
    """What `%tpu_init` does, without its table: look at the host, set the session's defaults.

    Args:
        precision: "fp32", "bf16" or "bf16-downcast", of the runs to come.
        processes: number of ranks of the runs to come; with `hosts`, of all hosts together.
        cache: folder of the persistent compile cache, or "off"; None leaves it as it is.
        spmd: number of devices of one SPMD worker.
        collective_timeout: seconds that a rank of a rehearsal waits in a collective for the others.
        framework: "auto", "torch" or "tensorflow".
        hosts: the Ray cluster whose hosts train: "ray" (that of this machine), "ray://HOST:PORT", "HOST:PORT"; "" and
            "off" mean this host.
        target: with `hosts`, the TPU slice to request from the cluster ("v5litepod-16").
        checkpoints: where those of the runs to come are kept: a folder, an address ("gs://bucket/run1"), or "off"; None
            leaves it as it is.
        tpu_branch: whether, without a TPU, XLA:CPU takes its place in the workers, so that torch_xla, accelerate,
            transformers and Lightning take their TPU branch; None: where its plugin is installed.
        stands_for: without a TPU, the TPU that is rehearsed, "v5e-8": its ranks, and what libraries are told of it.

    Raises:
        TpuMagicsError: a setting is not possible here.
    """
    wanted = wanted_slice(target, hosts)
    settings = (precision, processes, cache, spmd, collective_timeout, framework, hosts, wanted, checkpoints)
    return session.initialise(*settings, tpu_branch, rehearsed_slice(stands_for, hosts))
