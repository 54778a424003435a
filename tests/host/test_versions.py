"""Versions are read from metadata and judged; the recorded hosts all fit."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from tpu_magics.backends.torch.versions import has_other_libtpu
from tpu_magics.host.versions import PACKAGES, installed, judge

from .fake_hosts import COLAB_TPU_VERSIONS, KAGGLE_TPU_VERSIONS, LOCAL_VERSIONS, TPU_VM_VERSIONS


@pytest.mark.parametrize(
    ("versions", "tpu"),
    [(COLAB_TPU_VERSIONS, True), (KAGGLE_TPU_VERSIONS, True), (TPU_VM_VERSIONS, True), (LOCAL_VERSIONS, False)],
)
def test_recorded_hosts_fit_together(versions, tpu):
    assert judge(versions, tpu) == []


def change(**changes):
    return {**LOCAL_VERSIONS, **{name.replace("__", "-"): value for name, value in changes.items()}}


PAIR = '%pip install "torch==2.9.0" "torch_xla==2.9.0" "accelerate>=1.10"'


@pytest.mark.parametrize(
    ("changes", "what", "command", "state"),
    [
        ({"torch_xla": None}, "torch_xla is not installed.", PAIR, "broken"),
        ({"torch": None, "torch_xla": None}, "torch and torch_xla are not installed.", PAIR, "broken"),
        (
            {"torch": "2.8.0+cpu", "torch_xla": None},
            "torch_xla is not installed.",
            '%pip install "torch==2.8.0" "torch_xla==2.8.0" "accelerate>=1.10"',
            "broken",
        ),
        (
            {"torch": "2.10.0+cu128"},
            "torch 2.10.0+cu128 and torch_xla 2.9.0 are not compatible.",
            '%pip install "torch==2.9.0"',
            "broken",
        ),
        (
            {"torch": "2.9.1"},
            "torch 2.9.1 and torch_xla 2.9.0 are not compatible.",
            '%pip install "torch==2.9.0"',
            "broken",
        ),
        (
            {"torch_xla": "2.8.0"},
            "torch 2.9.0 and torch_xla 2.8.0 are not compatible.",
            '%pip install "torch==2.8.0"',
            "broken",
        ),
        (
            {"tensorflow": "2.20.0"},
            "tensorflow 2.20.0 is installed together with torch_xla.",
            "!pip uninstall -y tensorflow && pip install --force-reinstall --no-deps tensorflow-cpu==2.20.0",
            "warning",
        ),
        ({"ipython": "7.33.0"}, "ipython 7.33.0 is older than 7.34.", '%pip install "ipython>=7.34"', "broken"),
        ({"ipywidgets": "7.6.5"}, "ipywidgets 7.6.5 is older than 7.7.", '%pip install "ipywidgets>=7.7"', "warning"),
        ({"ipywidgets": None}, "ipywidgets is not installed.", '%pip install "ipywidgets>=7.7"', "warning"),
    ],
)
def test_one_thing_that_does_not_fit(changes, what, command, state):
    (problem,) = judge(change(**changes))
    assert (problem.what, problem.command, problem.state) == (what, command, state)
    assert problem.why
    assert problem.todo.startswith(f"{command}, then restart the kernel")
    assert problem.about == "versions"


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": "2.9.0+cu128"},
        {"torch": "2.7.1", "torch_xla": "2.7.0"},
        {"torch": "2.10.0.dev20251001", "torch_xla": "2.10.0"},
        {"tensorflow__cpu": "2.20.0"},
        {"ipython": "10.0.0", "ipywidgets": "8.0.0"},
        {"accelerate": None, "transformers": None},
    ],
)
def test_what_fits(changes):
    assert judge(change(**changes)) == []


def test_the_command_for_a_tpu_brings_libtpu():
    (problem,) = judge(change(torch_xla=None), tpu=True)
    assert problem.command == '%pip install "torch==2.9.0" "torch_xla[tpu]==2.9.0" "accelerate>=1.10"'


def test_torch_xla_on_a_tpu_without_libtpu():
    (problem,) = judge(LOCAL_VERSIONS, tpu=True)
    assert problem.what == "libtpu is not installed."
    assert problem.command == '%pip install "torch_xla[tpu]==2.9.0"'


def test_libtpu_can_come_from_elsewhere():
    assert judge(LOCAL_VERSIONS, tpu=True, other_libtpu=True) == []
    assert has_other_libtpu({"TPU_LIBRARY_PATH": "/lib/libtpu.so"})


def test_a_libtpu_inside_torch_xla_is_found(tmp_path, monkeypatch):
    (tmp_path / "torch_xla-2.9.0.dist-info").mkdir()
    (tmp_path / "torch_xla-2.9.0.dist-info/METADATA").write_text("Name: torch_xla\nVersion: 2.9.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not has_other_libtpu({})
    (tmp_path / "torch_xla/lib").mkdir(parents=True)
    (tmp_path / "torch_xla/lib/libtpu.so").write_text("")
    assert has_other_libtpu({})


def test_without_torch_xla_there_is_no_libtpu_in_it(monkeypatch):
    monkeypatch.setattr("sys.path", [])
    assert not has_other_libtpu({})


def test_several_problems_are_all_told():
    problems = judge(change(torch="2.8.0", ipywidgets=None, tensorflow="2.20.0"), tpu=True)
    assert [problem.what.split()[0] for problem in problems] == ["torch", "libtpu", "tensorflow", "ipywidgets"]


def test_versions_of_this_python():
    versions = installed()
    assert tuple(versions) == ("python", *PACKAGES)
    assert versions["python"] == platform.python_version()
    assert versions["ipython"] == importlib.metadata.version("ipython")


def test_what_is_not_installed_is_none(tmp_path, monkeypatch):
    (tmp_path / "torch-2.9.0.dist-info").mkdir()
    (tmp_path / "torch-2.9.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.0+cpu\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    versions = installed()
    assert versions.pop("torch") == "2.9.0+cpu"
    assert set(versions.values()) == {None, platform.python_version()}


# -- TensorFlow ----------------------------------------------------------------------------------------------------

TENSORFLOW = {"python": "3.12.11", "ipython": "9.4.0", "ipywidgets": "8.1.7", "keras": "3.15.1"}


@pytest.mark.parametrize(
    ("packages", "tpu"),
    [
        ({"tensorflow-cpu": "2.21.0"}, False),
        ({"tensorflow": "2.20.0"}, False),
        ({"tensorflow-cpu": "2.20.0", "torch_xla": "2.8.0"}, False),  # beside torch_xla, in another process
        ({"tensorflow-tpu": "2.20.0"}, False),
        ({"tensorflow-tpu": "2.20.0", "libtpu": "0.0.52"}, True),
        ({"tensorflow-tpu": "2.16.1", "keras": "3.0.5"}, True),
    ],
)
def test_tensorflow_that_fits(packages, tpu):
    assert judge({**TENSORFLOW, **packages}, tpu, framework="tensorflow") == []


def test_torch_is_not_asked_of_tensorflow_and_not_the_other_way_round():
    assert "torch" not in judge(TENSORFLOW, framework="tensorflow")[0].what
    assert judge(LOCAL_VERSIONS) == []


@pytest.mark.parametrize(
    ("packages", "tpu", "what", "command", "state"),
    [
        ({}, False, "TensorFlow is not installed.", '%pip install "tpu-magics[tf]"', "broken"),
        ({}, True, "TensorFlow is not installed.", '%pip install "tpu-magics[tf-tpu]"', "broken"),
        (
            {"tensorflow-cpu": "2.20.0"},
            True,
            "tensorflow-cpu 2.20.0 cannot use this host's TPU.",
            '!pip uninstall -y tensorflow-cpu && pip install "tpu-magics[tf-tpu]"',
            "broken",
        ),
        (
            {"tensorflow": "2.21.0", "tensorflow-cpu": "2.20.0"},
            True,
            "tensorflow 2.21.0 and tensorflow-cpu 2.20.0 cannot use this host's TPU.",
            '!pip uninstall -y tensorflow tensorflow-cpu && pip install "tpu-magics[tf-tpu]"',
            "broken",
        ),
        (
            {"tensorflow": "2.20.0", "tensorflow-tpu": "2.20.0"},
            True,
            "tensorflow and tensorflow-tpu are both installed.",
            "!pip uninstall -y tensorflow && pip install --force-reinstall --no-deps tensorflow-tpu==2.20.0",
            "warning",
        ),
        (
            {"tensorflow-cpu": "2.15.1"},
            False,
            "tensorflow-cpu 2.15.1 is older than 2.16.",
            '%pip install "tensorflow-cpu>=2.16"',
            "broken",
        ),
        (
            {"tensorflow-cpu": "2.20.0", "keras": "2.15.0"},
            False,
            "keras 2.15.0 is older than 3.0.",
            '%pip install "keras>=3.0"',
            "broken",
        ),
    ],
)
def test_tensorflow_that_does_not_fit(packages, tpu, what, command, state):
    (problem,) = judge({**TENSORFLOW, **packages}, tpu, framework="tensorflow")
    assert (problem.what, problem.command, problem.state) == (what, command, state)
    assert problem.about == "versions" and problem.todo == f"{command}, then restart the kernel"


def test_a_plain_tensorflow_on_a_tpu_is_told_with_tensorflows_own_words():
    (problem,) = judge({**TENSORFLOW, "tensorflow": "2.21.0"}, True, framework="tensorflow")
    assert "No OpKernel was registered to support Op 'ConfigureDistributedTPU'" in problem.why
    assert "2.16.1 to 2.20.0" in problem.why


def test_the_notebook_is_judged_for_tensorflow_too():
    (problem,) = judge({**TENSORFLOW, "tensorflow-cpu": "2.21.0", "ipywidgets": None}, framework="tensorflow")
    assert problem.what == "ipywidgets is not installed."
