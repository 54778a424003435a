"""The options of a preflight, each declared once (launch/options.py): the parser of %tpu_preflight and of the command
line, and the keywords of `tpu_magics.preflight`, are made from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from tpu_magics.backends.base import STEPS
from tpu_magics.launch.options import ALL_DEVICES, Options, option

_OF_TRAINING = {one.name: one.metadata["option"] for one in fields(Options) if "option" in one.metadata}


@dataclass(frozen=True, kw_only=True)
class PreflightOptions:
    """The options of one preflight. `spmd`: None: as in the session."""

    target: str | Sequence[str] = option(
        MISSING,
        "--target",
        kind="targets",
        metavar="T,T",
        help="TPUs: v5e-8 (Google: v5litepod-8), v6e-1, v4-8, v5p-8, ...",
        doc='names of TPUs, "v5e-8" or "v5litepod-8,v6e-1"',
    )
    fit: str | None = option(
        None,
        "--fit",
        kind="size",
        metavar="NAME",
        help="search the largest value that fits of an argument or of a name in the notebook: exact below 4,096, to "
        "1 %% above; the figures are then for the largest multiple of 8",
    )
    steps: int = option(
        STEPS,
        "--steps",
        kind="count",
        metavar="N",
        help=f"trace at most N steps (default: {STEPS})",
        doc="trace at most this many steps; tracing stops when two consecutive graphs are equal",
    )
    precision: str | None = option(None, *_OF_TRAINING["precision"].flags, **_OF_TRAINING["precision"].shared())
    processes: int | None = option(
        None,
        "-n",
        "--processes",
        kind="count",
        metavar="N",
        help="number of ranks (default: those of the target)",
    )
    spmd: bool | None = option(
        None,
        "--spmd",
        kind="flag",
        help="one process drives all devices of the target as a mesh",
        doc="one process drives all devices of the target (default: as in the session)",
    )
    profile: bool = option(False, "--profile", help="where the time and memory of a step go, by kind, module and line")
    compare: str | Sequence[str] = option(
        (),
        "--compare",
        kind="words",
        metavar="NAME=V,V",
        help="compile each combination: batch=32,64 precision=fp32,bf16 remat=on,off (gradient checkpointing)",
        doc='variants to compile: ("batch=32,64", "precision=fp32,bf16", "remat=on,off"), each combination',
    )
    mesh: str | Sequence[str] = option(
        (),
        "--mesh",
        kind="words",
        metavar="AXIS=N,AXIS=N",
        help="compile it for each mesh of all devices: data=8 fsdp=8 data=4,model=2 (the batch is that of all devices)",
        doc='meshes to compile it for: ("data=8", "fsdp=8", "data=4,model=2"). In one, a single process drives all '
        "devices of the target, and the batch of the function is that of all of them",
    )
    advise: bool = option(
        False,
        "--advise",
        help="try changes that apply to the step by compiles: what do they gain?",
        doc="try changes that apply to the step by compiles, and tell which of them gain",
    )
    kept: bool = option(
        True,
        "--anew",
        help="compile again, and cache nothing",
        doc="use cached results of earlier compiles, and cache these",
    )
    force: bool = option(False, "--force", help="trace even if there is not enough host memory (estimate)")

    def of_trace(self) -> Options:
        """Options of the run that traces. Raises TpuMagicsError for invalid values."""
        names: dict[str, Any] = {"processes": self.processes, "precision": self.precision, "steps": self.steps}
        made = Options(**names, force=self.force, spmd=ALL_DEVICES if self.spmd else None)
        made.check()
        return made
