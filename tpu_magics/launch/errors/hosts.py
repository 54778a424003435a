"""Failures of runs on several hosts: a host that was lost, or that could not start."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure


def lost(failure: Failure) -> Explanation:
    """A host was lost during the run."""
    names = [f"{name} ({base.ranks(ranks)})" for name, ranks, _ in failure.lost]
    why = "; ".join(f"{name}: {how}" for name, _, how in failure.lost)
    one = len(names) == 1
    return Explanation(
        f"{'Host' if one else 'Hosts'} {', '.join(names)} {'was' if one else 'were'} lost during the run.",
        f"{why}. The other hosts were stopped, because collectives cannot finish without {'it' if one else 'them'}. "
        f"{base.UNCHANGED}",
        "Check with `ray status` whether the node is back (a spot or preemptible TPU may have been reclaimed). Run "
        "%tpu_init --hosts again to use the hosts that are available now, and run the cell again.",
    )


def refused(failure: Failure) -> Explanation:
    """A host could not start the run and reported the reason."""
    name, what, why, todo = failure.refused[0]
    others = f" The same on {len(failure.refused) - 1} more." if len(failure.refused) > 1 else ""
    if what:
        return Explanation(f"Host {name}: {what}", f"{why}{others}", todo)
    return Explanation(
        f"Host {name} could not start the run.",
        f"{why}.{others} {base.UNCHANGED}",
        _missing(why) or "The text above comes from that host. Its full output is in the run folder (host-*.log).",
    )


_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def _missing(why: str) -> str:
    found = _NO_MODULE.search(why)
    if not found:
        return ""
    return (
        f"Install {found[1]} on every host, then run the cell again. If it is a file beside the notebook, put its code "
        "into a cell or copy it to the Python path of each host."
    )


def with_host(failure: Failure, text: str, rank: int | None) -> str:
    """The text with the host's name after the first mention of the rank outside of brackets."""
    if rank is None or rank not in failure.hosts:
        return text
    return re.sub(rf"(?<!\()\b([Rr]ank {rank})\b", rf"\1 on host {failure.hosts[rank]}", text, count=1)
