"""Environments are told by their recorded signs; what is changed in their variables, and that nobody's own setting is
overwritten."""

from __future__ import annotations

import os

import pytest

from tpu_magics.host import inspect_host, notebook_environment
from tpu_magics.host.environments import (
    choose_device,
    find_environment,
    judge_pjrt,
    worker_changes,
)

from . import fake_hosts


@pytest.mark.parametrize(
    ("build", "key", "name", "menu", "promise"),
    [
        (fake_hosts.plain, "plain", "local machine", "", ""),
        (fake_hosts.cloud_machine, "plain", "local machine", "", ""),
        (fake_hosts.colab_cpu, "colab", "Colab", "Runtime > Change runtime type", ""),
        (fake_hosts.colab_gpu, "colab", "Colab", "Runtime > Change runtime type", ""),
        (fake_hosts.colab_v5e_1, "colab", "Colab", "Runtime > Change runtime type", "COLAB_TPU_1VM=1"),
        (fake_hosts.kaggle_cpu, "kaggle", "Kaggle", "Settings > Accelerator", ""),
        (fake_hosts.kaggle_v5e_8, "kaggle", "Kaggle", "Settings > Accelerator", "ISTPUVM=1"),
        (fake_hosts.tpu_vm_v4, "tpu-vm", "TPU VM", "", ""),
        (fake_hosts.gke, "gke", "Google Kubernetes Engine", "", "TPU_TOPOLOGY=2x4"),
    ],
)
def test_the_place_of_a_recorded_host(tmp_path, build, key, name, menu, promise):
    host = build(tmp_path)
    chips = 4 if build is fake_hosts.tpu_vm_v4 else 0
    place = find_environment(host.environ, host.modules, chips)
    assert (place.key, place.name, place.menu, place.promise) == (key, name, menu, promise)


@pytest.mark.parametrize(
    ("environ", "modules"),
    [({"COLAB_RELEASE_TAG": "release-colab_20260801"}, ()), ({}, ("google.colab",))],
)
def test_one_sign_of_colab_is_enough(environ, modules):
    assert find_environment(environ, modules).key == "colab"


@pytest.mark.parametrize("value", ["", "0", "true"])
def test_only_the_value_1_makes_colab_a_tpu_vm(value):
    assert find_environment({"COLAB_RELEASE_TAG": "x", "COLAB_TPU_1VM": value}).promise == ""


def test_an_account_key_for_kaggle_is_no_sign_of_being_there():
    environ = {"KAGGLE_USERNAME": "somebody", "KAGGLE_KEY": "secret", "COLAB_RELEASE_TAG": "x"}
    assert find_environment(environ).key == "colab"


@pytest.mark.parametrize("missing", ["TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_TOPOLOGY", "TPU_SKIP_MDS_QUERY"])
def test_gke_needs_all_four_signs(tmp_path, missing):
    environ = fake_hosts.gke(tmp_path).environ
    del environ[missing]
    assert find_environment(environ, (), 4).key == "tpu-vm"


def test_the_variables_of_an_ahead_of_time_compile_do_not_make_gke():
    environ = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    assert find_environment(environ).key == "plain"


def test_the_hosts_of_a_slice(tmp_path):
    assert find_environment(fake_hosts.gke(tmp_path).environ).hosts == ("job-0.svc", "job-1.svc")


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
