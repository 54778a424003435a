"""A cluster that requires a token, which Ray does wherever it finds one: on a real cluster of one node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.pods import nodes

pytestmark = [pytest.mark.process, pytest.mark.long]

FIND = """
import os, sys
import ray
import tpu_magics
from tpu_magics.launch.pods import cluster, host_selection

os.environ.update(dict(pair.split("=") for pair in sys.argv[2:]))  # as %env does, after Ray's import
try:
    print([host.name for host in host_selection.find_pod(sys.argv[1]).hosts])
except tpu_magics.TpuMagicsError as error:
    print(error)
finally:
    cluster.disconnect()
"""


@dataclass(frozen=True)
class TokenCluster:
    """A cluster, and the environment of a user on its node."""

    address: str
    environment: dict[str, str]

    def find(self, hosts: str, *settings: str) -> str:
        """What a notebook there prints for these hosts, with these variables."""
        command = [sys.executable, "-c", FIND, hosts, *settings]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=True)
        assert "WARNING" not in done.stderr, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def guarded() -> Iterator[TokenCluster]:
    home = Path(tempfile.mkdtemp(prefix="token-"))  # a short path, for Ray's sockets
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("a-token-of-more-than-enough-letters")
    environment = {**os.environ, "HOME": str(home), "RAY_TMPDIR": str(home), "PYTHONPATH": str(nodes.ROOT)}
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        environment.pop(name, None)
    try:
        with nodes.started_elsewhere([{"node_name": "alpha"}], {**environment, "RAY_AUTH_MODE": "token"}) as address:
            yield TokenCluster(address, environment)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_on_the_cluster_itself_the_local_token_is_used(guarded: TokenCluster) -> None:
    assert guarded.find("ray") == "['alpha']\n"


def test_for_an_address_the_local_token_is_not_sent(guarded: TokenCluster) -> None:
    said = guarded.find(guarded.address)
    assert said.startswith(f"The Ray cluster at {guarded.address} requires a token.\n")
    assert "this notebook sends no token" in said and "run %env RAY_AUTH_MODE=token before %tpu_init" in said
    assert guarded.find(guarded.address, "RAY_AUTH_MODE=token") == "['alpha']\n"


def test_a_wrong_token_is_an_error(guarded: TokenCluster) -> None:
    said = guarded.find(guarded.address, "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=another-token-that-is-not-the-clusters")
    assert said.startswith(f"The Ray cluster at {guarded.address} requires a token.\n")
    assert "is not the cluster's" in said and "Copy ~/.ray/auth_token" in said
