"""Installed versions, read from package metadata, and whether they are compatible."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable

from tpu_magics.backends.frameworks import FAMILIES
from tpu_magics.backends.torch.versions import no_libtpu
from tpu_magics.backends.version_checks import RESTART, VersionCheck, VersionFacts, Versions, too_old
from tpu_magics.errors import VERSIONS, HostProblem

PACKAGES = tuple(
    dict.fromkeys(
        ("ipython", "ipykernel", "ipywidgets", *(name for family in FAMILIES.values() for name in family.shown))
    )
)


def installed() -> dict[str, str | None]:
    """Version of Python and of each of PACKAGES; None where it is not installed."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def version_of(name: str) -> str | None:
    """Version of a package; None where it is not installed, or not whole."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError, ValueError):  # or metadata that is broken
        return None


def judge(
    versions: Versions, tpu: bool = False, other_libtpu: bool = False, framework: str = "torch", environment: str = ""
) -> list[HostProblem]:
    """Problems of the versions.

    Args:
        versions: as `installed()` gives them.
        tpu: whether the host has a TPU.
        other_libtpu: whether torch_xla finds a libtpu other than the package (see `has_other_libtpu`).
        framework: what cells are trained with, "torch" or "tensorflow".
        environment: the key of the host's environment (environments.py).
    """
    return _judged(
        (*FAMILIES[framework].versions(), *_NOTEBOOK), VersionFacts(versions, tpu, other_libtpu, environment)
    )


def judge_framework(
    versions: Versions, tpu: bool = False, framework: str = "torch", environment: str = ""
) -> list[HostProblem]:
    """The part of `judge` that is about the frameworks, without libtpu."""
    checks = [one for one in FAMILIES[framework].versions() if one is not no_libtpu]
    return _judged(checks, VersionFacts(versions, tpu, False, environment))


def judge_libtpu(versions: Versions, tpu: bool = False, other_libtpu: bool = False) -> list[HostProblem]:
    """The part of `judge` that is about libtpu."""
    return _judged((no_libtpu,), VersionFacts(versions, tpu, other_libtpu))


def judge_ipython(versions: Versions) -> list[HostProblem]:
    """The part of `judge` that is about IPython."""
    return _judged((_old_ipython,), VersionFacts(versions, False, False))


def judge_ipywidgets(versions: Versions) -> list[HostProblem]:
    """The part of `judge` that is about ipywidgets."""
    return _judged((_old_ipywidgets, _no_ipywidgets), VersionFacts(versions, False, False))


def _judged(checks: Iterable[VersionCheck], facts: VersionFacts) -> list[HostProblem]:
    return [problem for problem in (check(facts) for check in checks) if problem is not None]


def _old_ipython(facts: VersionFacts) -> HostProblem | None:
    return too_old(facts.versions, "ipython", (7, 34), "The magics need IPython 7.34 or newer.", "broken")


def _old_ipywidgets(facts: VersionFacts) -> HostProblem | None:
    return too_old(facts.versions, "ipywidgets", (7, 7), "The live panel needs ipywidgets 7.7 or newer.", "warning")


def _no_ipywidgets(facts: VersionFacts) -> HostProblem | None:
    if facts.versions.get("ipywidgets"):
        return None
    return HostProblem(
        about=VERSIONS,
        what="ipywidgets is not installed.",
        why="The live panel needs its widgets.",
        command='%pip install "ipywidgets>=7.7"',
        then=f"{RESTART} and reload the page",
        state="warning",
    )


_NOTEBOOK: tuple[VersionCheck, ...] = (_old_ipython, _old_ipywidgets, _no_ipywidgets)
