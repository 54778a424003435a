"""Places are told by their recorded signs."""

from __future__ import annotations

import pytest

from tpu_magics.host.environments import NamedTpu, find_environment, named_tpu

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


# -- a TPU that the environment names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({}, None),
        ({"TPU_NAME": " "}, None),
        ({"TPU_NAME": "local"}, NamedTpu("local", "TPU_NAME")),
        ({"TPU_NAME": "node-1", "COLAB_TPU_ADDR": "10.0.0.2:8470"}, NamedTpu("node-1", "TPU_NAME")),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, NamedTpu("grpc://10.0.0.2:8470", "COLAB_TPU_ADDR")),
        ({"COLAB_TPU_ADDR": "grpc://10.0.0.2:8470"}, NamedTpu("grpc://10.0.0.2:8470", "COLAB_TPU_ADDR")),
        (
            {"TPU_NAME": "node-1", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.3:8470"},
            NamedTpu("grpc://10.0.0.3:8470", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"),
        ),
    ],
)
def test_a_tpu_that_a_variable_names(environ, named):
    assert named_tpu(environ) == named
