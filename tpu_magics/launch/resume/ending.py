"""What may end a run from outside: a SIGTERM to the notebook's process, a notice of preemption or maintenance, the end
of a session on Colab or Kaggle. The run saves before, and stops where it must."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tpu_magics.host import Host
from tpu_magics.host.doctor.facts import METADATA_SERVER, ask_metadata_server
from tpu_magics.host.environments import session_since

ON_GOOGLE_CLOUD = ("tpu-vm", "gke")  # Environment.key
BEFORE_THE_END = 240.0  # seconds before the end of a session at which a checkpoint is saved
EVERY = 2.0  # seconds between questions to the metadata server
_PREEMPTED, _MAINTENANCE = "preempted", "maintenance-event"  # cloud.google.com/compute/docs/metadata
_POLL = 0.1


class EndWatch:
    """Watches from `start` to `stop`. `save`: save at once; `save_and_stop`: and end the run; `ended`: whether it has;
    `say`: for the user."""

    def __init__(
        self,
        host: Host | None,
        save: Callable[[], None],
        save_and_stop: Callable[[], None],
        ended: Callable[[], bool],
        say: Callable[[str], None],
        server: tuple[str, int] = METADATA_SERVER,
    ) -> None:
        self._host = host
        self._save = save
        self._save_and_stop = save_and_stop
        self._ended = ended
        self._say = say
        self._server = server
        self._over = threading.Event()
        self._old: Any = None
        self._late = False
        self._waits = False

    def start(self, background: bool) -> None:
        """From the main thread. `background`: that thread goes on meanwhile."""
        self._waits = background
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGTERM, self._terminated)
        environment = self._host.environment if self._host is not None else None
        if environment is not None and (environment.key in ON_GOOGLE_CLOUD or environment.limit is not None):
            threading.Thread(target=self._watch, name="tpu_magics-end", daemon=True).start()

    def stop(self) -> None:
        """The run is over: what was asked for meanwhile happens now. From the main thread."""
        self._over.set()
        if self._old is not None:
            with contextlib.suppress(ValueError):  # another thread: the handler stays, and ends the process
                signal.signal(signal.SIGTERM, self._old)
                self._old = None
        if self._late:
            self._late = False
            signal.raise_signal(signal.SIGTERM)

    def _terminated(self, *_signal: Any) -> None:
        self._late = True
        if self._over.is_set():
            self.stop()
            return
        self._save_and_stop()
        if self._waits:  # nothing else waits for the run in this thread
            while not self._ended():
                time.sleep(_POLL)
            self.stop()

    # -- in a thread ----------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        assert self._host is not None
        environment, since = self._host.environment, session_since()
        last = None  # by a clock that nobody sets
        if environment.limit is not None and since is not None:
            last = time.monotonic() + since + environment.limit - BEFORE_THE_END - time.time()
        asks, told = environment.key in ON_GOOGLE_CLOUD, False
        while not self._over.wait(EVERY):
            if last is not None and time.monotonic() > last:
                last = None
                self._say("This session ends in a few minutes: saving a checkpoint.")
                self._save()
            if asks and self._answer(_PREEMPTED) == "TRUE":
                self._say("This host is being preempted: saving a checkpoint and stopping the run.")
                self._save_and_stop()
                return
            if asks and not told and self._answer(_MAINTENANCE) not in ("", "NONE"):
                told = True
                self._say("Maintenance of this host was announced: saving a checkpoint.")
                self._save()

    def _answer(self, name: str) -> str:
        found = ask_metadata_server(self._server, path=name)
        return found.text.strip() if found.status == 200 else ""
