"""What the workers of a slice are told: read back by torch_xla's own code, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tpu_magics.launch.pods.slice_environment import UNSET_VARIABLES, slice_environments
from tpu_magics.magics.pod import slice_of

# Without a chip torch_xla cannot start; but what it would tell its runtime is made of the environment alone.
READ = """
import json, os, sys
import torch_xla
from torch_xla._internal import tpu
slices, plain = json.loads(sys.argv[1]), json.loads(sys.argv[2])
seen = {}
for target, told in slices.items():
    seen[target] = []
    for host in told:
        for local in range(4):
            os.environ.clear()
            os.environ.update(plain)
            for name, value in host.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
            read = {"worker": tpu.worker_id(), "hosts": tpu.num_tpu_workers(), "version": tpu.version()}
            tpu.configure_topology(local, 4)
            read.update({name: os.environ[name] for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU"))})
            seen[target].append(read)
print(json.dumps(seen))
"""
# Left over from another start on these hosts, as facts of Kaggle's image and of Ray's actors.
LEFTOVERS = {"TPU_PROCESS_ADDRESSES": "local", "CLOUD_TPU_TASK_ID": "0", "TPU_VISIBLE_CHIPS": "0,1,2,3"}
SLICES = {  # target -> torch_xla's version, the processes in each direction, hosts
    "v5litepod-16": (5, "4,4,1", 4),
    "v4-32": (4, "2,2,4", 4),
    "v5p-16": (5, "2,2,2", 2),
    "v6e-16": (6, "4,4,1", 4),
    "v3-32": (3, "4,4,1", 4),
    "tpu7x-16": (7, "2,2,2,2", 2),
}


def addresses(hosts: int) -> list[str]:
    return [f"10.0.0.{index + 1}" for index in range(hosts)]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What torch_xla makes of the environment in each process of each slice."""
    told = {target: slice_environments(slice_of(target), addresses(hosts)) for target, (_, _, hosts) in SLICES.items()}
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-c", READ, json.dumps(told), json.dumps({**plain, **LEFTOVERS})]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("read"), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.process
@pytest.mark.parametrize("target", SLICES)
def test_torch_xla_reads_the_slice_from_it(target: str, read: dict[str, list[dict[str, Any]]]) -> None:
    version, bounds, hosts = SLICES[target]
    seen = read[target]
    assert [one["worker"] for one in seen] == [rank // 4 for rank in range(hosts * 4)]
    assert [one["CLOUD_TPU_TASK_ID"] for one in seen] == [str(rank) for rank in range(hosts * 4)]
    assert {(one["hosts"], one["version"], one["TPU_PROCESS_BOUNDS"]) for one in seen} == {(hosts, version, bounds)}
    everyone = ",".join(f"{address}:{8476 + local}" for address in addresses(hosts) for local in range(4))
    assert {one["TPU_PROCESS_ADDRESSES"] for one in seen} == {everyone}
    assert [one["TPU_VISIBLE_CHIPS"] for one in seen] == [str(rank % 4) for rank in range(hosts * 4)]


def test_leftovers_are_unset_and_no_metadata_server_is_asked() -> None:
    first, second = slice_environments(slice_of("v5p-16"), ["10.0.0.1", "10.0.0.2"])
    assert all(first[name] is None for name in UNSET_VARIABLES)
    assert (first["TPU_SKIP_MDS_QUERY"], first["TPU_WORKER_HOSTNAMES"]) == ("1", "10.0.0.1,10.0.0.2")
    assert (first["TPU_WORKER_ID"], second["TPU_WORKER_ID"]) == ("0", "1")
    assert not any(name.startswith("MEGASCALE") for name in first)
