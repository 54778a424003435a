"""Checks of libtpu by package metadata and file names. Does not load it: that would take the TPU."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from tpu_magics.host.chips import TPU7X
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, VariableFix, from_problems
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.versions import has_other_libtpu, judge_libtpu, release

GROUP = "libtpu"
PATH = "TPU_LIBRARY_PATH"
_KNOWS_7X = (0, 0, 22)  # 0.0.21.1 does not support tpu7x, 0.0.51 does; which one was the first is unknown


def checks(facts: HostFacts) -> Iterator[Check]:
    """The package, the file, and whether it supports the TPU's generation."""
    yield from _installed(facts)
    if facts.versions.get("libtpu-nightly") and facts.versions.get("libtpu"):
        yield _twice(facts)
    if PATH in facts.environ:
        yield _path(facts)
    if TPU7X in {chip.generation for chip in facts.host.chips} and facts.versions.get("libtpu"):
        yield _supports(facts)


def _installed(facts: HostFacts) -> Iterator[Check]:
    version, other = facts.versions.get("libtpu"), has_other_libtpu(facts.environ)
    problems = judge_libtpu(facts.versions, bool(facts.host.chips), other) if facts.host.framework == "torch" else []
    if problems or version:
        yield from from_problems(GROUP, "Package", problems, f"libtpu {version}")
    elif other:
        yield Check(GROUP, "Package", OK, f"Not the package: torch_xla's own libtpu, or the one that {PATH} names")
    else:
        why = (
            "pip installs it together with tensorflow-tpu."
            if facts.host.chips
            else "On this host only preflights need it."
        )
        yield Check(GROUP, "Package", NOT_AVAILABLE, "libtpu is not installed.", why)


def _twice(facts: HostFacts) -> Check:
    same, nightly = facts.versions["libtpu"], facts.versions["libtpu-nightly"]
    return Check(
        GROUP,
        "One libtpu",
        WARNING,
        f"libtpu {same} and libtpu-nightly {nightly} are both installed.",
        "They own the same files, so the one that was installed last is loaded.",
        f"!pip uninstall -y libtpu-nightly && pip install --force-reinstall --no-deps libtpu=={same}",
        "restart the kernel",
    )


def _path(facts: HostFacts) -> Check:
    path = facts.environ[PATH]
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Check(GROUP, PATH, OK, f"{PATH} names an existing file: {path}")
    values = {PATH: None}
    return Check(
        GROUP,
        PATH,
        BROKEN if facts.host.chips else WARNING,
        f"{PATH}={path}: there is no such file.",
        "torch_xla loads only the libtpu that it names.",
        change(values),
        "continue; if torch_xla is already imported, restart the kernel and run this first",
        VariableFix(values),
    )


def _supports(facts: HostFacts) -> Check:
    version = str(facts.versions["libtpu"])
    if release(version) >= _KNOWS_7X:
        return Check(
            GROUP, "Generation", OK, f"libtpu {version} is newer than the last version known not to support 7x"
        )
    return Check(
        GROUP,
        "Generation",
        BROKEN,
        f"libtpu {version} does not support a TPU of generation 7x.",
        "Version 0.0.21.1 and older do not know its name.",
        "%pip install -U libtpu",
        "restart the kernel",
    )
