"""What the libtpu of a host lacks: the one list of tests that are skipped there, and why.

A pytest plugin, loaded with `-p tests.hosts.lacking` where the suites run in a host's environment. What lives here: the
list, each row as it was seen, and the skipping. What does not: other skips; in CI there are none (tests/_ci.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

import pytest


@dataclass(frozen=True)
class Lack:
    """`libtpu`: the versions in which it was seen; `tests`: regular expressions; each finds tests by node id."""

    libtpu: tuple[str, ...]
    tests: tuple[str, ...]
    reason: str


# 0.0.17 is Kaggle's, 0.0.21.1 Colab's. Asked for a topology of 7x both answer, through jaxlib's
# get_default_c_api_topology: "INVALID_ARGUMENT: Invalid TPU external name: TPU7x". 0.0.52 makes it.
LACKS = (
    Lack(
        ("0.0.17", "0.0.21.1"),
        (
            r"preflight/test_targets\.py::test_libtpu_takes_the_topology_and_has_these_devices\[tpu7x",
            r"preflight/test_targets\.py::test_every_second_device_of_7x",
            r"preflight/test_targets\.py::test_the_compiler_allows_a_program_what_is_said_to_be_available\[7x\]",
            r"preflight/test_compiling\.py::test_a_7x_is_compiled_for",
        ),
        "does not know the generation 7x",
    ),
)


def libtpu() -> str:
    """The installed version; "" where there is none."""
    try:
        return metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        return ""


def reason(test: str) -> str:
    """Why the test with this node id cannot run with the libtpu that is installed; "" where it can."""
    version = libtpu()
    found = (lack for lack in LACKS if version in lack.libtpu and any(re.search(each, test) for each in lack.tests))
    return next((f"libtpu {version} {lack.reason}" for lack in found), "")


def explains(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a test was skipped for what stands in the list, and for nothing else."""
    why = reason(report.nodeid)
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return bool(why) and said == f"Skipped: {why}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        why = reason(item.nodeid)
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
