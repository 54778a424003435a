"""How the versions of installed packages are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpu_magics.errors import VERSIONS, HostProblem

RESTART = "restart the kernel"
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")  # packages that bring TensorFlow

Versions = Mapping[str, str | None]


@dataclass(frozen=True)
class VersionFacts:
    """What a check of versions looks at. `versions`: as host.versions.installed() gives them; `tpu`: whether the host
    has a TPU; `other_libtpu`: whether a libtpu other than the package is found; `environment`: its key in
    host.environments."""

    versions: Versions
    tpu: bool = False
    other_libtpu: bool = False
    environment: str = ""


VersionCheck = Callable[[VersionFacts], HostProblem | None]


def too_old(versions: Versions, name: str, floor: tuple[int, int], why: str, state: str) -> HostProblem | None:
    """The problem of a package that is older than `floor`."""
    have = release(versions.get(name))
    if not have or have >= floor:
        return None
    least = f"{floor[0]}.{floor[1]}"
    return HostProblem(
        about=VERSIONS,
        what=f"{name} {versions[name]} is older than {least}.",
        why=why,
        command=f'%pip install "{name}>={least}"',
        then=RESTART,
        state=state,
    )


def release(version: str | None) -> tuple[int, ...]:
    """The numbers of a version: "2.9.0+cu128" -> (2, 9, 0), "2.9.0a1" -> (2, 9, 0); () where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()
