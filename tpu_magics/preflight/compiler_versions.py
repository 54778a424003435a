"""The versions of jaxlib and libtpu, read without importing them, and whether they suffice."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.chips import find_chips

NEEDED = {"jaxlib": (0, 6, 2), "libtpu": (0, 0, 17)}  # the oldest that this was run with
NEWER_PYTHON = (3, 11)  # of the oldest jaxlib above
INSTALL = "Install them with: pip install 'tpu-magics[preflight]'"
UPGRADE = "Install newer ones with: pip install -U 'tpu-magics[preflight]'"
ELSEWHERE = (
    "Run the preflight on another machine (it needs no TPU), and install there: pip install -U 'tpu-magics[preflight]'"
)
ROOT = Path("/")  # where this host's TPU is looked for


def versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """Versions by name. `packages`: folders that are searched before this interpreter's own.

    Raises TpuMagicsError where one is missing or too old.
    """
    found = {name: version for name in NEEDED if (version := _version(name, packages))}
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise _missing(missing)
    old = [name for name, least in NEEDED.items() if _numbers(found[name]) < least]
    if old:
        raise _old(old, found, packages)
    return found


def listed(found: Mapping[str, str]) -> str:
    """ "jaxlib 0.10.2, libtpu 0.0.52"."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _version(name: str, packages: Sequence[str]) -> str:
    found = metadata.distributions(name=name, path=[*packages, *sys.path])
    return next((one.version for one in found), "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version.split("+")[0]))


def _missing(names: Sequence[str]) -> TpuMagicsError:
    if sys.version_info < NEWER_PYTHON:
        return TpuMagicsError(
            f"{' and '.join(names)} are not available for this Python ({sys.version_info[0]}.{sys.version_info[1]}).",
            "The TPU compiler is part of libtpu and is called through jaxlib. Both need Python 3.11 or newer.",
            "Run the preflight with Python 3.11 or newer, and install there: pip install -U 'tpu-magics[preflight]'",
        )
    are = "is" if len(names) == 1 else "are"
    return TpuMagicsError(
        f"{' and '.join(names)} {are} not installed.",
        "The TPU compiler is part of libtpu and is called through jaxlib. It needs no TPU.",
        INSTALL,
    )


def _old(names: Sequence[str], found: Mapping[str, str], packages: Sequence[str]) -> TpuMagicsError:
    least = ", ".join(f"{name} {'.'.join(map(str, NEEDED[name]))}" for name in names)
    return TpuMagicsError(
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} too old for a preflight.",
        f"Found: {listed(found)}. Needed: {least} or newer.{_needed_here(packages)}",
        ELSEWHERE if _trains_here(packages) else UPGRADE,
    )


def _needed_here(packages: Sequence[str]) -> str:
    if not _trains_here(packages):
        return ""
    return " torch_xla uses the installed libtpu on this host's TPU, and may not work with a newer one."


def _trains_here(packages: Sequence[str]) -> bool:
    """Whether newer ones would take this host's TPU away from torch_xla; in folders of their own they take nothing."""
    return not packages and bool(find_chips(ROOT)) and bool(_version("torch_xla", ()))
