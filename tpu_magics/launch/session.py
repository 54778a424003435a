"""What one notebook process remembers between cells.

What lives here: the session's defaults, the host as it was last seen, which cell did what, and the run that is going
on. What does not: any of the work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpu_magics.backends.base import Backend
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, inspect_host, notebook_environment
from tpu_magics.launch.guards import Marks
from tpu_magics.launch.notebook import Notebook, PlainProgram

if TYPE_CHECKING:
    from tpu_magics.launch.results import TrainResult
    from tpu_magics.launch.train import Going


@dataclass
class Session:
    """One for each process. `notebook`: where output goes; `going`: the run that has not come home yet; `last`: the
    newest run's result."""

    notebook: Notebook = field(default_factory=PlainProgram)
    precision: str = ""
    processes: int | None = None
    cache: str = ""
    spmd: int | None = None
    collective_timeout: float | None = None
    framework: str = "torch"
    host: Host | None = None
    marks: Marks = field(default_factory=Marks)
    going: Going | None = None
    last: TrainResult | None = None
    initialised: bool = False
    told_menu: bool = False
    _backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The framework's half; made at the first use, imports nothing of the framework yet."""
        if self._backend is None:
            from tpu_magics.backends.torch_xla import TorchXla

            self._backend = TorchXla()
        return self._backend

    def refuse_second(self) -> None:
        """Raise TpuMagicsError while a run is going on."""
        if self.going is not None and self.going.folder.info["pid"] != os.getpid():
            raise TpuMagicsError(
                "Training was started inside a worker.",
                "The training function runs on every rank already.",
                "Take the call that trains out of the function.",
            )
        if self.going is not None and self.going.busy:
            name = self.going.folder.name
            raise TpuMagicsError(
                f"The run {name!r} is still going on, and one run at a time can have the device.",
                "It was started with --background.",
                f"Wait for it with _tpu.wait(), or stop it with %tpu_stop {name}",
            )


current = Session()


def initialise(
    precision: str | None = None,
    processes: int | None = None,
    cache: str | None = None,
    spmd: int | None = None,
    collective_timeout: float | None = None,
) -> Host:
    """What `%tpu_init` does: look at the host, set the session's defaults, and this process's PJRT_DEVICE.

    Never initialises a runtime. Returns the host as it was found. `cache`: folder of the persistent compile cache, or
    "off"; None leaves it as it is. `spmd`: runs have one SPMD worker with so many devices.
    """
    from tpu_magics.launch.plan import Options, cache_folder, count_workers

    Options(precision=precision, processes=processes, spmd=spmd, collective_timeout=collective_timeout).check()
    host = inspect_host()
    count_workers(host, processes, spmd)
    if cache is not None:
        current.cache = cache_folder(cache)
    os.environ.update(notebook_environment(host))
    current.host = host
    current.precision = precision or ""
    current.processes = processes
    current.spmd = spmd
    current.collective_timeout = collective_timeout
    current.backend.quiet_seeds()
    current.initialised = True
    return host


def cache_text(host: Host) -> str:
    """What becomes of the persistent compile cache on this host, in a sentence."""
    if not current.cache:
        return "the persistent compile cache is off."
    if host.device == "CPU":
        return (
            f"the persistent compile cache ({current.cache}) stays off here: on XLA:CPU torch_xla 2.9 cannot load what "
            "it has stored. On a TPU the same line turns it on."
        )
    return f"compiled programs are kept in {current.cache}, and taken from there in later runs."


def known_host() -> Host:
    """The host, looked at anew: a TPU may have been taken since. Without %tpu_init, this process is set up as it
    would."""
    if not current.initialised:
        return initialise()
    current.host = inspect_host()
    return current.host
