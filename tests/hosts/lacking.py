"""What the libtpu and the torch_xla of a host lack: the one list of tests that are skipped there, and why.

A pytest plugin, loaded with `-p tests.hosts.lacking` where the suites run in a host's environment. Each row was seen
there. Other tests are never skipped in CI (tests/_ci.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

import pytest


@dataclass(frozen=True)
class Lack:
    """`package` and `versions`: in which it was seen; `tests`: regular expressions; each finds tests by node id."""

    package: str
    versions: tuple[str, ...]
    tests: tuple[str, ...]
    reason: str


# 0.0.17 is Kaggle's, 0.0.21.1 Colab's. Asked for a topology of 7x both answer, through jaxlib's
# get_default_c_api_topology: "INVALID_ARGUMENT: Invalid TPU external name: TPU7x". 0.0.52 makes it.
LACKS = (
    Lack(
        "libtpu",
        ("0.0.17", "0.0.21.1"),
        (
            r"preflight/test_targets\.py::test_libtpu_takes_the_topology_and_has_these_devices\[tpu7x",
            r"preflight/test_targets\.py::test_every_second_device_of_7x",
            r"preflight/test_targets\.py::test_the_compiler_allows_a_program_what_is_said_to_be_available\[7x\]",
            r"preflight/test_compilation\.py::test_a_7x_is_compiled_for",
        ),
        "does not know the generation 7x",
    ),
    # SIGABRT in pjrt_computation_client.cpp:525, "Failed to await future from buffer to literal inTransferFromDevice",
    # where 2.9.0 raises: "Out of memory allocating 70368744177664 bytes". What the compiler refuses is raised by both.
    Lack(
        "torch_xla",
        ("2.8.0",),
        (r"launch/test_trainer\.py::test_a_smaller_batch_is_found_and_trained_from_the_beginning\[runtime\]",),
        "ends the process where memory does not suffice for a program that was compiled",
    ),
    # TorchTPU 0.2.0 with torch 2.15.0, on XLA:CPU through the plugin of fastatomstruct-xla-cpu 2026.6.23.
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (
            r"backends/torch/test_weights\.py::test_scenario\[scenario_a_worker_that_never_used_the_device\]",
            r"launch/test_trainer\.py::test_the_settings_of_the_guides_together",
        ),
        "has no metrics report of torch_xla, and starts its runtime with the worker",
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (
            r"launch/test_state\.py::test_an_optimizer_of_a_model_that_is_sharded_is_refused",
            r"launch/test_trainer\.py::test_clipping_counts_the_shards_of_all_ranks",
        ),
        "has no FSDP of torch_xla",
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (r"launch/test_endings\.py::test_a_rank_whose_thread_ends_without_a_result_ends_the_run",),
        "runs a rank in the main thread, not in an executor",
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (r"launch/test_state\.py::test_training_continues_exactly",),
        'has no GradScaler: "operator aten::_amp_foreach_non_finite_check_and_unscale_ is not implemented for TPU"',
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (r"launch/test_trainer\.py::test_a_smaller_batch_is_found_and_trained_from_the_beginning",),
        "raises a failed allocation later, where the host next reads; and the other case patches torch_xla",
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (r"launch/test_endings\.py::test_what_was_trained_comes_home_all_the_same\[limits_memory\]",),
        "starts threads for its first program, which the limited address space does not have",
    ),
    Lack(
        "torch_tpu",
        ("0.2.0",),
        (r"launch/test_trainer\.py::test_fp16_is_explained",),
        "leaves fp16 to accelerate, whose refusal is explained in other words",
    ),
)


def installed(package: str) -> str:
    """The version, without what a build adds to it ("2.8.0+cpu"); "" where there is none."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def reason(test: str) -> str:
    """Why the test with this node id cannot run with the versions that are installed; "" where it can."""
    found = (lack for lack in LACKS if any(re.search(each, test) for each in lack.tests))
    here = ((lack, installed(lack.package)) for lack in found)
    return next((f"{lack.package} {version} {lack.reason}" for lack, version in here if version in lack.versions), "")


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
