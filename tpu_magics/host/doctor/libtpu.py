"""libtpu: whether it is there, is the only one, and is the file that a variable names.

What lives here: that, by package metadata and file names. What does not: loading it, which would take the TPU.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from tpu_magics.host.chips import TPU7X
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, from_problems
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.mending import SetVariables
from tpu_magics.host.doctor.seen import Seen
from tpu_magics.host.versions import has_other_libtpu, judge_libtpu, release

GROUP = "libtpu"
PATH = "TPU_LIBRARY_PATH"
_KNOWS_7X = (0, 0, 22)  # 0.0.21.1 does not know tpu7x, 0.0.51 does; between them it is not known which is the first


def checks(seen: Seen) -> Iterator[Check]:
    """The package, the file, and the generation that it must know."""
    yield from _installed(seen)
    if seen.versions.get("libtpu-nightly") and seen.versions.get("libtpu"):
        yield _twice(seen)
    if PATH in seen.environ:
        yield _path(seen)
    if TPU7X in {chip.generation for chip in seen.host.chips} and seen.versions.get("libtpu"):
        yield _knows(seen)


def _installed(seen: Seen) -> Iterator[Check]:
    version, other = seen.versions.get("libtpu"), has_other_libtpu(seen.environ)
    problems = judge_libtpu(seen.versions, bool(seen.host.chips), other) if seen.host.framework == "torch" else []
    if problems or version:
        yield from from_problems(GROUP, "Package", problems, f"libtpu {version}")
    elif other:
        yield Check(GROUP, "Package", OK, f"Not the package: torch_xla's own, or the one that {PATH} names")
    else:
        why = "pip installs what tensorflow-tpu needs with it." if seen.host.chips else "Only preflights need it here."
        yield Check(GROUP, "Package", NOT_AVAILABLE, "libtpu is not installed.", why)


def _twice(seen: Seen) -> Check:
    same, nightly = seen.versions["libtpu"], seen.versions["libtpu-nightly"]
    return Check(
        GROUP,
        "One libtpu",
        WARNING,
        f"libtpu {same} and libtpu-nightly {nightly} are both installed.",
        "They own the same files, so the one that was installed last is the one that is loaded.",
        f"!pip uninstall -y libtpu-nightly && pip install --force-reinstall --no-deps libtpu=={same}",
        "restart the kernel",
    )


def _path(seen: Seen) -> Check:
    path = seen.environ[PATH]
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Check(GROUP, PATH, OK, f"{PATH} names a file that is there: {path}")
    mending = {PATH: None}
    return Check(
        GROUP,
        PATH,
        BROKEN if seen.host.chips else WARNING,
        f"{PATH}={path} names no file.",
        "torch_xla takes the libtpu that it names, and looks for no other.",
        change(mending),
        "go on; where torch_xla is imported already, restart the kernel and do it first",
        SetVariables(mending),
    )


def _knows(seen: Seen) -> Check:
    version = str(seen.versions["libtpu"])
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
