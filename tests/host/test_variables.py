"""What is changed in the environment, where, and that nobody's own setting is overwritten."""

from __future__ import annotations

import os

import pytest

from tpu_magics.host import inspect_host, notebook_environment
from tpu_magics.host.environments import find_environment
from tpu_magics.host.variables import choose_device, judge_pjrt, worker_changes

from . import fake_hosts


def test_kaggle_unsets_what_its_image_bakes_in(tmp_path):
    host = fake_hosts.kaggle_v5e_8(tmp_path)
    repairs = worker_changes(host.environ, find_environment(host.environ), 8)
    assert [(repair.name, repair.value, repair.before) for repair in repairs] == [
        ("TPU_PROCESS_ADDRESSES", None, "local"),
        ("CLOUD_TPU_TASK_ID", None, "0"),
    ]
    assert {repair.reason for repair in repairs} == {
        "Kaggle's image sets it for one process. With one worker per chip, libtpu stops with "
        '"Expected 8 worker addresses, got 1"'
    }


def test_only_what_is_set_is_repaired(tmp_path):
    environ = fake_hosts.kaggle_v5e_8(tmp_path).environ
    del environ["CLOUD_TPU_TASK_ID"]
    assert [repair.name for repair in worker_changes(environ, find_environment(environ), 8)] == [
        "TPU_PROCESS_ADDRESSES"
    ]


@pytest.mark.parametrize(
    "build",
    [
        fake_hosts.plain,
        fake_hosts.colab_cpu,
        fake_hosts.colab_gpu,
        fake_hosts.colab_v5e_1,
        fake_hosts.kaggle_cpu,
        fake_hosts.tpu_vm_v4,
        fake_hosts.gke,
    ],
)
def test_elsewhere_the_same_variables_are_left_alone(tmp_path, build):
    host = build(tmp_path)
    host.environ.update(TPU_PROCESS_ADDRESSES="10.0.0.1:8476", CLOUD_TPU_TASK_ID="3")
    assert inspect_host(**host.arguments()).variable_changes == ()


def test_repairs_in_the_form_that_workers_take(tmp_path):
    host = inspect_host(**fake_hosts.kaggle_v5e_8(tmp_path).arguments())
    assert host.worker_environment == {"TPU_PROCESS_ADDRESSES": None, "CLOUD_TPU_TASK_ID": None}


@pytest.mark.parametrize(
    ("build", "device"),
    [(fake_hosts.plain, "CPU"), (fake_hosts.colab_gpu, "CPU"), (fake_hosts.colab_v5e_1, "TPU")],
)
def test_pjrt_device_is_set_where_it_is_not(tmp_path, build, device):
    assert notebook_environment(inspect_host(**build(tmp_path).arguments())) == {"PJRT_DEVICE": device}


@pytest.mark.parametrize("value", ["CPU", "TPU", "CUDA"])
def test_pjrt_device_that_is_set_is_kept(tmp_path, value):
    host = fake_hosts.plain(tmp_path)
    host.environ["PJRT_DEVICE"] = value
    assert notebook_environment(inspect_host(**host.arguments())) == {}


@pytest.mark.parametrize(
    ("value", "chips", "device"),
    [
        ("", 0, "CPU"),
        ("", 8, "TPU"),
        ("TPU", 8, "TPU"),
        ("TPU_C_API", 8, "TPU"),
        ("CPU", 8, "CPU"),
        ("CPU", 0, "CPU"),
        ("TPU", 0, "CPU"),
        ("CUDA", 8, "TPU"),
    ],
)
def test_what_cells_train_on(value, chips, device):
    assert choose_device(value, chips) == device


@pytest.mark.parametrize(("value", "chips"), [("", 0), ("", 4), ("CPU", 0), ("TPU", 4), ("TPU_C_API", 1)])
def test_a_pjrt_device_that_fits(value, chips):
    assert judge_pjrt(value, chips) == []


@pytest.mark.parametrize(
    ("value", "chips", "what", "command", "state"),
    [
        ("TPU", 0, "PJRT_DEVICE=TPU is wrong for this host, which has no TPU. It was not changed.", "CPU", "broken"),
        ("CUDA", 0, "PJRT_DEVICE=CUDA is wrong for this host, which has no TPU. It was not changed.", "CPU", "broken"),
        (
            "CPU",
            1,
            "PJRT_DEVICE=CPU is wrong for this host, which has 1 TPU chip. It was not changed.",
            "TPU",
            "warning",
        ),
        (
            "CUDA",
            8,
            "PJRT_DEVICE=CUDA is wrong for this host, which has 8 TPU chips. It was not changed.",
            "TPU",
            "broken",
        ),
    ],
)
def test_a_pjrt_device_that_does_not_fit(value, chips, what, command, state):
    (problem,) = judge_pjrt(value, chips)
    assert (problem.what, problem.command, problem.state) == (what, f"%env PJRT_DEVICE={command}", state)
    assert problem.todo == f"%env PJRT_DEVICE={command}, then run %tpu_init again"


def test_nothing_of_this_writes_to_the_environment(tmp_path, monkeypatch):
    for name, value in fake_hosts.kaggle_v5e_8(tmp_path).environ.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    host = inspect_host(root=tmp_path / "root")
    assert host.environment.key == "kaggle"
    assert host.variable_changes
    notebook_environment(host)
    assert dict(os.environ) == before
