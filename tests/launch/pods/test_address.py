"""Addresses in the `--hosts` option."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.launching import error_of
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.pods.address import parse_address


@pytest.mark.parametrize("asked", ["", "off", " OFF "])
def test_off_is_no_address(asked: str) -> None:
    assert parse_address(asked, {"RAY_ADDRESS": "10.0.0.2:6379"}) is None


@pytest.mark.parametrize(
    ("asked", "url", "client"),
    [
        ("10.0.0.2:6379", "10.0.0.2:6379", False),
        ("head.local:7000", "head.local:7000", False),
        ("[fe80::1]:6379", "[fe80::1]:6379", False),
        ("ray://head:10002", "ray://head:10002", True),
        ("ray://head", "ray://head:10001", True),
        ("ray://10.0.0.2:10001/", "ray://10.0.0.2:10001", True),
    ],
)
def test_full_addresses(asked: str, url: str, client: bool) -> None:
    found = parse_address(asked, {})
    assert found is not None and (found.url, found.client, found.source) == (url, client, "")


@pytest.mark.parametrize("word", ["ray", "auto", "RAY"])
def test_the_cluster_of_this_machine_is_the_one_that_ray_recorded(word: str, tmp_path: Path) -> None:
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379\n")
    found = parse_address(word, {}, tmp_path)
    assert found is not None and found.url == "10.0.0.9:6379"
    assert found.text == f"10.0.0.9:6379 (from {tmp_path / 'ray_current_cluster'})"


@pytest.mark.parametrize("named", ["ray://10.0.0.3:10001", "10.0.0.3:6379"])
def test_ray_address_has_priority(named: str, tmp_path: Path) -> None:
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379")
    found = parse_address("ray", {"RAY_ADDRESS": named}, tmp_path)
    assert found is not None and (found.url, found.source) == (named, "RAY_ADDRESS")


def test_auto_in_ray_address_means_the_recorded_cluster(tmp_path: Path) -> None:
    (tmp_path / "ray_current_cluster").write_text("10.0.0.9:6379")
    found = parse_address("ray", {"RAY_ADDRESS": "auto"}, tmp_path)
    assert found is not None and found.url == "10.0.0.9:6379"


def test_no_cluster_here(tmp_path: Path) -> None:
    error = error_of(parse_address, "ray", {}, tmp_path)
    assert error.what == "This machine is not part of a Ray cluster."
    assert "RAY_ADDRESS is not set" in error.why and str(tmp_path) in error.why
    assert "ray start --head" in error.todo and "--hosts ray://HEAD:10001" in error.todo


@pytest.mark.parametrize("asked", ["10.0.0.2", "head:port", "head:0", "head:70000", "ray:/head", "a b:1", "ray://"])
def test_invalid_addresses(asked: str) -> None:
    error = error_of(parse_address, asked, {})
    assert error.what == f"--hosts {asked} is not the address of a Ray cluster."
    assert "ray://HOST:PORT (a cluster that this machine is not part of)" in error.why
    assert "--hosts ray://10.0.0.2:10001" in error.todo


def test_another_scheme_is_named() -> None:
    with pytest.raises(TpuMagicsError, match="not the address") as error:
        parse_address("http://head:8265", {})
    assert error.value.why.startswith("Ray does not use http://.")


def test_a_wrong_variable_is_named() -> None:
    error = error_of(parse_address, "ray", {"RAY_ADDRESS": "head"})
    assert error.why.startswith("RAY_ADDRESS is 'head'.")
