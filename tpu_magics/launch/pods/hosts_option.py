"""`--hosts` of `%tpu_init`: the session gets a pod, or loses it.

What lives here: what the session's other settings allow, and the order of leaving one pod and joining another. What
does not: looking at a cluster (plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.plan import Options
from tpu_magics.launch.pods import address, cluster, host_selection, slices

if TYPE_CHECKING:
    from tpu_magics.launch.pods.pod import Pod
    from tpu_magics.launch.pods.slices import Slice
    from tpu_magics.launch.session import Session


def join_pod(current: Session, hosts: str, wanted: Slice | None, options: Options) -> Pod | None:
    """The pod that `hosts` names; None, and what was there left, for none. Where it is refused, the session keeps its
    pod, unless that was given back for the new one."""
    if address.is_off(hosts):
        leave_pod(current)
        return None
    _require_idle(current)
    if options.spmd is not None:
        raise TpuMagicsError(
            "--spmd and --hosts cannot be had together.",
            "An SPMD run has one worker, which drives the devices of its own host.",
            "Leave one of them away.",
        )
    before = (cluster.Connection.address, slices.Reservation.group)
    try:
        return host_selection.find_pod(hosts, wanted, options.processes)
    except BaseException:
        if (cluster.Connection.address, slices.Reservation.group) != before:
            current.pod = None
        raise


def leave_pod(current: Session) -> None:
    """No pod any longer: its slice and the connection are given back."""
    if current.pod is None and cluster.Connection.address is None and slices.Reservation.group is None:
        return
    _require_idle(current)
    current.pod = None
    slices.release()
    cluster.disconnect()


def require_pytorch(hosts: str) -> None:
    """For a framework that trains in the notebook's own process."""
    if not address.is_off(hosts):
        raise TpuMagicsError(
            "--hosts is for PyTorch/XLA.",
            "TensorFlow trains in this notebook's own process, and a TPUStrategy reaches its hosts by itself.",
            "Name the TPU with --tpu instead, or choose --framework torch.",
        )


def _require_idle(current: Session) -> None:
    if current.going is not None and current.going.busy and current.pod is not None:
        raise TpuMagicsError(
            f"The run {current.going.folder.name!r} is still going on, on the hosts that --hosts named.",
            "It was started with --background.",
            f"Wait for it with _tpu.wait(), or stop it with %tpu_stop {current.going.folder.name}",
        )
