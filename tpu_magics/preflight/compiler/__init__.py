"""The compile process: `python -m tpu_magics.preflight.compiler JOB`, which holds jaxlib and libtpu and nothing else;
and what both of its sides exchange.

It is a separate process because libtpu cannot be loaded beside torch_xla or TensorFlow, because the compiler ends its
process where it fails hard, and because its memory can be limited.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# -- jobs and events --------------------------------------------------------------------------------------------------


READY = "ready"  # libtpu is loaded and knows the topology
STARTED = "started"  # `graph`: whose compile begins now
COMPILED = "compiled"  # `graph`, and its result as JSON in `compiled`
UNUSABLE = "unusable"  # jaxlib or libtpu cannot be used: `text`
NO_TOPOLOGY = "no-topology"  # libtpu does not take the topology: `text`


@dataclass(frozen=True)
class JobProgram:
    """A graph of the job. `number`: by which the events name it; `file`: where its module lies; else as in `Graph`."""

    number: int
    file: str
    form: str
    hash: str
    donors: tuple[int, ...]
    replicas: int
    partitions: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """`parent`: process with which the compile process ends; `available`: HBM bytes that a program may have, where that
    is known; `folder`: for temporary files; `versions`: of jaxlib and libtpu."""

    parent: int
    target: str
    topology: str
    options: Mapping[str, Any]
    available: int | None
    folder: str
    versions: Mapping[str, str]
    programs: tuple[JobProgram, ...] = field(default_factory=tuple)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        data = json.loads(path.read_text(encoding="utf-8"))
        programs = [_tuples(one) for one in data.pop("programs")]
        return cls(**data, programs=tuple(JobProgram(**one) for one in programs))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
