"""One comm to a front end of the JupyterLab extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tpu_magics.panel.protocol import TARGET

if TYPE_CHECKING:
    from tpu_magics.magics.lab import Lab


class FrontEndComm:
    """One comm, as the kernel's comm manager knows it. `heard`: when a front end has said something on it last;
    `rate`: when it has asked for an update rate last, and for how many seconds."""

    primary, target_name, target_module, kernel = True, TARGET, None, None

    def __init__(self, lab: Lab, comm_id: str, own: bool) -> None:
        self.lab, self.comm_id, self.own = lab, comm_id, own
        self.heard: float | None = None
        self.rate: tuple[float, float] | None = None
        self._closed = False

    def handle_msg(self, message: Mapping[str, Any]) -> None:
        """Called by the manager, in whichever thread it reads messages."""
        self.lab.take(self.comm_id, message["content"].get("data"))

    def handle_close(self, _message: Mapping[str, Any]) -> None:
        self.lab.was_closed(self)

    def ask_rate(self, seconds: float) -> None:
        """Its front end wants an update so often, and no longer as often as it wanted before."""
        self.rate = (self.lab.now(), seconds)
