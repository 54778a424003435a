"""Versions on the hosts: which differences are errors, and which are notes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.launch.launching import error_of
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods.host_versions import HostReport, require_same_versions

OWN = {"python": "3.11.7", "tpu_magics": "0.1.0", "ray": "2.60.0", "torch": "2.9.0", "torch_xla": "2.9.0"}


def judged(*hosts: dict[str, str]) -> list[str]:
    names = [f"host-{index}" for index in range(len(hosts))]
    return require_same_versions(names, [HostReport({**OWN, **host}) for host in hosts], OWN)


def refused(*hosts: dict[str, str]) -> TpuMagicsError:
    return error_of(judged, *hosts)


def test_the_same_versions_give_no_note() -> None:
    assert judged({}, {}) == []


def test_another_patch_is_a_note() -> None:
    said = judged({}, {"python": "3.11.9"}, {"torch": "2.9.1+cpu"})
    assert said == [
        "Python differs between the hosts: 3.11.7 on this notebook, host-0 and host-2, 3.11.9 on host-1.",
        "torch differs between the hosts: 2.9.0 on this notebook, host-0 and host-1, 2.9.1+cpu on host-2.",
    ]


@pytest.mark.parametrize(
    ("host", "what", "line", "todo"),
    [
        ({"python": "3.12.1"}, "Python", "  host-1: Python 3.12.1", "with the same Python, e.g. 3.11.7."),
        ({"tpu_magics": "0.2.0"}, "tpu_magics", "  host-1: tpu_magics 0.2.0", 'pip install "tpu-magics==0.1.0"'),
        ({"torch": "2.8.0"}, "torch", "  host-1: torch 2.8.0", 'pip install "torch==2.9.0"'),
        ({"torch_xla": "2.8.1"}, "torch_xla", "  host-1: torch_xla 2.8.1", 'pip install "torch_xla==2.9.0"'),
    ],
)
def test_another_release_is_refused_with_a_line_for_each_host(
    host: dict[str, str], what: str, line: str, todo: str
) -> None:
    error = refused({}, host)
    assert error.what == f"The hosts do not have the same {what} as this notebook."
    assert line in error.details and len(error.details) == 3
    assert error.details[0].startswith(f"  this notebook: {what} ")
    assert todo in error.todo


def test_a_host_without_this_package_is_refused() -> None:
    """A host with Ray only, as in Ray's own image."""
    error = error_of(require_same_versions, ["bare"], [HostReport({"python": "3.11.7", "ray": "2.60.0"})], OWN)
    assert error.what == "The hosts do not have the same tpu_magics and torch and torch_xla as this notebook."
    assert error.details[1] == "  bare: tpu_magics --, torch --, torch_xla --"
    assert error.todo.endswith('pip install "tpu-magics==0.1.0" "torch==2.9.0" "torch_xla==2.9.0"')


def test_many_hosts_are_counted_in_the_sentence_and_listed_below() -> None:
    hosts: Sequence[dict[str, str]] = [{"python": "3.11.9"}] * 7
    assert judged(*hosts) == [
        "Python differs between the hosts: 3.11.7 on this notebook, 3.11.9 on host-0, host-1, host-2 and 4 more."
    ]
