"""Checks of Python, of our requirements, and of packages that pip changed after they were imported."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

from tpu_magics.host import versions
from tpu_magics.host.doctor.check import OK, WARNING, Check, from_problems
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.problem import BROKEN

GROUP = "Python and packages"
OLDEST = (3, 10)
_NEEDED = ("psutil", "safetensors")
_LARGE = 8  # bytes of a pointer


def checks(facts: HostFacts) -> Iterator[Check]:
    """Python, IPython, missing requirements, and packages that changed after their import."""
    yield _python(facts)
    yield from from_problems(
        GROUP,
        "IPython",
        versions.judge_ipython(facts.versions),
        f"IPython {facts.versions.get('ipython') or 'not installed (needed in notebooks only)'}",
    )
    yield _needed(facts)
    yield _changed(facts)


def _python(facts: HostFacts) -> Check:
    version = str(facts.versions["python"])
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        return Check(
            GROUP,
            "Python",
            BROKEN,
            f"Python {version} is older than 3.10.",
            "tpu_magics and the torch_xla releases that it supports need 3.10 or newer.",
            then="start the notebook with a newer Python",
        )
    if struct.calcsize("P") < _LARGE or sys.platform != "linux":
        return Check(
            GROUP,
            "Python",
            BROKEN,
            f"This is Python {version} for {sys.platform}, {8 * struct.calcsize('P')} bits.",
            "torch_xla and libtpu are built for 64-bit Linux only.",
            then="use a Linux machine, Colab, Kaggle, or a Linux container",
        )
    return Check(GROUP, "Python", OK, f"Python {version}")


def _needed(facts: HostFacts) -> Check:
    missing = [name for name in _NEEDED if not facts.versions.get(name)]
    if missing:
        return Check(
            GROUP,
            "Requirements",
            BROKEN,
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "A run measures memory with psutil and transfers trained weights with safetensors.",
            f"%pip install {' '.join(missing)}",
            "run the cell again",
        )
    return Check(GROUP, "Requirements", OK, ", ".join(f"{name} {facts.versions[name]}" for name in _NEEDED))


def _installed(facts: HostFacts, module: str) -> str | None:
    """The version of the package that brings the module: tensorflow's has three names."""
    packages = versions.TENSORFLOWS if module == "tensorflow" else (module,)
    return next((found for name in packages if (found := facts.versions.get(name))), None)


def _changed(facts: HostFacts) -> Check:
    """pip changed a package after this process imported it: the old version stays in use until a restart."""
    changed = [
        f"{name} {loaded} (installed: {installed})"
        for name, loaded in facts.loaded.items()
        if (installed := _installed(facts, name)) and versions.release(loaded) != versions.release(installed)
    ]
    if changed:
        return Check(
            GROUP,
            "Imported packages",
            WARNING,
            f"This process still uses {', '.join(changed)}.",
            "The package changed after its import. This process and its workers keep the old version, but later "
            "imports from it get the new one.",
            then="restart the kernel",
        )
    what = ", ".join(f"{name} {version}" for name, version in facts.loaded.items()) or "no known package yet"
    return Check(GROUP, "Imported packages", OK, f"As installed: {what}")
