"""Incompatible versions of torch and torch_xla, as they show in a worker. host/ checks versions before a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_SYMBOL = re.compile(r"_XLAC[\w.\-]*\.so: undefined symbol: ?(\S*)|_XLAC[\w.\-]*\.so: undefined symbol")


def undefined_symbol(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """torch_xla's extension was built for another version of torch."""
    if not _SYMBOL.search(base.evidence(outcome)):
        return None
    installed = base.with_versions(failure, "torch", "torch_xla")
    return Explanation(
        f"Rank {outcome.rank} could not load torch_xla: it was built for another version of torch.",
        f"Installed: {installed or 'unknown'}. torch_xla needs the torch of the same version.",
        f"{_install(failure)}, then restart the kernel.",
    )


def _install(failure: Failure) -> str:
    known = re.match(r"\d+\.\d+\.\d+", failure.versions.get("torch_xla") or failure.versions.get("torch-xla") or "")
    return (
        f"Run `%pip install torch=={known[0]} torch_xla=={known[0]}`" if known else "Install the same version of both"
    )


EXPLAINERS = (undefined_symbol,)
