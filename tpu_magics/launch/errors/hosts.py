"""Runs on several hosts: one that was lost, one that could not begin, and who is where.

What lives here: these, in words. What does not: why a worker ended (the other files), and noticing it
(launch/pods/remote_watch.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure


def lost(failure: Failure) -> Explanation:
    """A host went away while the run went on."""
    names = [f"{name} ({base.ranks(ranks)})" for name, ranks, _ in failure.lost]
    why = "; ".join(f"{name}: {how}" for name, _, how in failure.lost)
    one = len(names) == 1
    return Explanation(
        f"{'Host' if one else 'Hosts'} {', '.join(names)} {'was' if one else 'were'} lost during the run.",
        f"{why}. The other hosts were stopped: without {'it' if one else 'them'} no collective comes to its end. "
        f"{base.UNCHANGED}",
        "See `ray status` whether the node is back (a spot or preemptible TPU may have been taken away), run "
        "%tpu_init --hosts again for the hosts that are there now, and run the cell again.",
    )


def refused(failure: Failure) -> Explanation:
    """A host could not begin, and said why."""
    name, what, why, todo = failure.refused[0]
    others = f" The same on {len(failure.refused) - 1} more." if len(failure.refused) > 1 else ""
    if what:
        return Explanation(f"Host {name}: {what}", f"{why}{others}", todo)
    return Explanation(
        f"Host {name} could not begin with what it was sent.",
        f"{why}.{others} {base.UNCHANGED}",
        _missing(why) or "The text above is that host's. Its whole output is in the run folder (host-*.log).",
    )


_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def _missing(why: str) -> str:
    found = _NO_MODULE.search(why)
    if not found:
        return ""
    return (
        f"Install {found[1]} on every host (a file beside the notebook: put its code into a cell, or copy it to each "
        "host's Python path), then run the cell again."
    )


def with_host(failure: Failure, text: str, rank: int | None) -> str:
    """The text with the host behind the first mention of a rank, which does not stand in brackets behind it."""
    if rank is None or rank not in failure.hosts:
        return text
    return re.sub(rf"(?<!\()\b([Rr]ank {rank})\b", rf"\1 on host {failure.hosts[rank]}", text, count=1)
