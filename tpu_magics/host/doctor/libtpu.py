"""libtpu: whether it is there, is the only one, and is the file that a variable names.

What lives here: that, by package metadata and file names. What does not: loading it, which would take the TPU.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from tpu_magics.host.chips import TPU7X
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, from_problems
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.doctor.fixes import VariableFix
from tpu_magics.host.versions import has_other_libtpu, judge_libtpu, release

GROUP = "libtpu"
PATH = "TPU_LIBRARY_PATH"
_KNOWS_7X = (0, 0, 22)  # 0.0.21.1 does not know tpu7x, 0.0.51 does; between them it is not known which is the first


def checks(facts: HostFacts) -> Iterator[Check]:
    """The package, the file, and the generation that it must know."""
    yield from _installed(facts)
    if facts.versions.get("libtpu-nightly") and facts.versions.get("libtpu"):
        yield _twice(facts)
    if PATH in facts.environ:
        yield _path(facts)
    if TPU7X in {chip.generation for chip in facts.host.chips} and facts.versions.get("libtpu"):
        yield _knows(facts)


def _installed(facts: HostFacts) -> Iterator[Check]:
    version, other = facts.versions.get("libtpu"), has_other_libtpu(facts.environ)
    problems = judge_libtpu(facts.versions, bool(facts.host.chips), other) if facts.host.framework == "torch" else []
    if problems or version:
        yield from from_problems(GROUP, "Package", problems, f"libtpu {version}")
    elif other:
        yield Check(GROUP, "Package", OK, f"Not the package: torch_xla's own, or the one that {PATH} names")
    else:
        why = "pip installs what tensorflow-tpu needs with it." if facts.host.chips else "Only preflights need it here."
        yield Check(GROUP, "Package", NOT_AVAILABLE, "libtpu is not installed.", why)


def _twice(facts: HostFacts) -> Check:
    same, nightly = facts.versions["libtpu"], facts.versions["libtpu-nightly"]
    return Check(
        GROUP,
        "One libtpu",
        WARNING,
        f"libtpu {same} and libtpu-nightly {nightly} are both installed.",
        "They own the same files, so the one that was installed last is the one that is loaded.",
        f"!pip uninstall -y libtpu-nightly && pip install --force-reinstall --no-deps libtpu=={same}",
        "restart the kernel",
    )


def _path(facts: HostFacts) -> Check:
    path = facts.environ[PATH]
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Check(GROUP, PATH, OK, f"{PATH} names a file that is there: {path}")
    values = {PATH: None}
    return Check(
        GROUP,
        PATH,
        BROKEN if facts.host.chips else WARNING,
        f"{PATH}={path} names no file.",
        "torch_xla takes the libtpu that it names, and looks for no other.",
        change(values),
        "go on; where torch_xla is imported already, restart the kernel and do it first",
        VariableFix(values),
    )


def _knows(facts: HostFacts) -> Check:
    version = str(facts.versions["libtpu"])
    if release(version) >= _KNOWS_7X:
        return Check(GROUP, "Generation", OK, f"libtpu {version} is newer than the last that is known not to know 7x")
    return Check(
        GROUP,
        "Generation",
        BROKEN,
        f"libtpu {version} does not know a TPU of generation 7x.",
        "0.0.21.1 and older ones refuse its name.",
        "%pip install -U libtpu",
        "restart the kernel",
    )
