"""The plan, the environment fixes and the table on Colab and on Kaggle, with the variables that their images set.

The recorded variables and chips are used with the packages of this environment if it is that host's (scripts/hosts.py),
else with its recorded versions; and in a real kernel.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.host import fake_hosts
from tests.magics.kernel import LOAD, running_kernel
from tpu_magics.host import Host, inspect_host, notebook_environment
from tpu_magics.host.versions import installed, version_of
from tpu_magics.launch import plan
from tpu_magics.launch.options import Options
from tpu_magics.panel.host import host_table
from tpu_magics.panel.table import to_text

LISTS = Path(__file__).parent
RECORDED = {"colab": fake_hosts.COLAB_TPU_VERSIONS, "kaggle": fake_hosts.KAGGLE_TPU_VERSIONS}
TPU_MACHINES = {"colab": fake_hosts.colab_v5e_1, "kaggle": fake_hosts.kaggle_v5e_8}


def pinned(name: str) -> dict[str, str]:
    """Package and version, as the host's list has them."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (LISTS / f"{name}.txt").read_text(), re.MULTILINE))


def is_here(name: str) -> bool:
    """Whether this environment is the host's."""
    wanted = {package: version for package, version in pinned(name).items() if package in ("torch", "libtpu")}
    return all(version_of(package) == version for package, version in wanted.items()) and bool(wanted)


@pytest.fixture(params=["colab", "kaggle"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    fake = TPU_MACHINES[request.param](tmp_path)
    versions = installed() if is_here(request.param) else dict(fake.versions)
    return inspect_host(fake.environ, fake.root, fake.modules, versions)


@pytest.mark.parametrize("name", RECORDED)
def test_the_lists_have_what_was_recorded(name: str) -> None:
    """Of the versions that tpu_magics looks at, those that the image pins."""
    found = pinned(name)
    assert {"torch", "torch_xla", "libtpu"} <= found.keys()
    same = {package: RECORDED[name][package] for package in found if RECORDED[name].get(package)}
    assert {package: found[package] for package in same} == same


@pytest.mark.parametrize("name", RECORDED)
def test_where_this_is_the_hosts_environment_it_has_every_version_of_the_list(name: str) -> None:
    if is_here(name):
        assert {package: version_of(package) for package in pinned(name)} == pinned(name)


def test_nothing_is_wrong_there(host: Host) -> None:
    """No version that does not fit, no variable that has to be changed by hand."""
    assert host.problems == () and host.notes == ()


def test_the_plan(host: Host) -> None:
    made = plan.make_plan(host, Options(), "bf16", plan.count_workers(host, None))
    workers = {"colab": 1, "kaggle": 8}[host.environment.key]
    unset = {"colab": {}, "kaggle": {"TPU_PROCESS_ADDRESSES": None, "CLOUD_TPU_TASK_ID": None}}[host.environment.key]
    assert (made.device, made.workers, made.replicas, made.ranks) == ("TPU", workers, 1, workers)
    assert not made.rehearsed
    assert [made.spec(index).environment for index in range(workers)] == [unset] * workers
    assert notebook_environment(host) == {"PJRT_DEVICE": "TPU"}


def test_the_table(host: Host) -> None:
    shown = to_text(host_table(host))
    chips = {"colab": "v5e, 1 chip (v5litepod-1)", "kaggle": "v5e, 8 chips (v5litepod-8)"}[host.environment.key]
    assert host.environment.name in shown and f"{chips}, 16 GiB of memory per chip" in shown
    assert f"torch {host.versions['torch']}, torch_xla {host.versions['torch_xla']}" in shown
    assert f"libtpu {host.versions['libtpu']}" in shown
    reasons = [change.reason for change in host.variable_changes]
    assert len(reasons) == {"colab": 0, "kaggle": 2}[host.environment.key]
    assert [" ".join(shown.split()).count(reason) for reason in reasons] == [2] * len(reasons)


CELL = """\
%%tpu_train
import os
import torch, torch_xla
x = torch.ones(3, device=torch_xla.device())
total = (x * 2).sum().item()
seen = {name: os.environ.get(name) for name in NAMES}
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [name for name in TPU_MACHINES if is_here(name)]
    or [pytest.param(name, marks=pytest.mark.long) for name in TPU_MACHINES],
)
def test_a_kernel_with_the_hosts_variables_trains(name: str, tmp_path: Path) -> None:
    """Without its chips: the table says that they are missing, cells train on the CPU, and the workers get the
    variables as they are to be, while the notebook's own stay."""
    variables = TPU_MACHINES[name](tmp_path / "fake").environ
    unset = {"colab": set(), "kaggle": {"TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID"}}[name]
    with running_kernel(tmp_path, **variables) as kernel:
        kernel.run(LOAD).good()
        said = " ".join(kernel.run("%tpu_init").good().shown.split())
        assert {"colab": "Colab", "kaggle": "Kaggle"}[name] in said
        assert "reports a TPU on this host" in said and "but /sys shows no TPU chip" in said
        kernel.run(f"NAMES = {sorted(variables)!r}").good()
        kernel.run(CELL).good()
        assert kernel.value("total") == 6.0
        assert kernel.value("seen") == {key: None if key in unset else text for key, text in variables.items()}
        own = kernel.value("{name: __import__('os').environ.get(name) for name in NAMES}")
        assert own == variables
