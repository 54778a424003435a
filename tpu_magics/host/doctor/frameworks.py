"""Checks of the frameworks' versions."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.host.doctor.check import NOT_AVAILABLE, OK, WARNING, Check, from_problems
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.versions import TENSORFLOWS, judge_framework, release

GROUP = "Framework versions"
_TORCH = ("torch", "torch_xla")
_OLDEST_ACCELERATE = (1, 10)


def checks(facts: HostFacts) -> Iterator[Check]:
    """The framework that cells use, accelerate, and two frameworks in one process."""
    torch = facts.host.framework == "torch"
    tpu = bool(facts.host.chips) if torch else facts.host.device == "TPU"
    names = _TORCH if torch else (*TENSORFLOWS, "keras")
    found = [f"{name} {facts.versions[name]}" for name in names if facts.versions.get(name)]
    fine = f"{', '.join(found)}: versions are compatible"
    problems = judge_framework(facts.versions, tpu, facts.host.framework, facts.host.environment.key)
    yield from from_problems(GROUP, "Framework", problems, fine)
    if torch:
        yield _accelerate(facts)
    yield _together(facts)


def _accelerate(facts: HostFacts) -> Check:
    version = facts.versions.get("accelerate")
    if not version:
        return Check(
            GROUP,
            "accelerate",
            NOT_AVAILABLE,
            "accelerate is not installed.",
            "Only cells that use Accelerator or the Trainer of transformers need it.",
            '%pip install "accelerate>=1.10"',
        )
    if release(version) < _OLDEST_ACCELERATE:
        return Check(
            GROUP,
            "accelerate",
            WARNING,
            f"accelerate {version} is older than 1.10.",
            "tpu_magics is tested with 1.10 and newer.",
            '%pip install "accelerate>=1.10"',
            "restart the kernel",
        )
    return Check(GROUP, "accelerate", OK, f"accelerate {version}")


def _together(facts: HostFacts) -> Check:
    both = "tensorflow" in facts.loaded and "torch_xla" in facts.loaded
    if both:
        return Check(
            GROUP,
            "One framework in a process",
            WARNING,
            "This process has imported both TensorFlow and torch_xla.",
            "Each has its own XLA. Which of the two still works depends on the order of the imports.",
            then="restart the kernel, and use only one of them in a notebook",
        )
    return Check(GROUP, "One framework in a process", OK, "No conflicting frameworks are imported")
