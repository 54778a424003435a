"""Where TensorFlow trains (with runtime_scenarios.py, on the TPUs of fake_tpu_resolver.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.backends.tensorflow.availability import not_importable

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("runtime_scenarios.py")


# -- without a TPU -------------------------------------------------------------------------------------------------


def test_without_a_tpu_it_is_the_default_strategy_with_one_replica(found: dict[str, Any]) -> None:
    seen = found["without"]
    assert (seen["kind"], seen["device"], seen["replicas"]) == ("default", "CPU", 1)
    assert seen["topology"].startswith("one replica. More cannot be rehearsed")
    assert "Collectives are not yet implemented for CPU devices when compiling with XLA" in seen["topology"]
    assert "jit_compile=True" in seen["notes"][0] and "proves little" in seen["notes"][0]


def test_a_second_time_gives_the_same_and_a_tpu_that_came_later_is_told(found: dict[str, Any]) -> None:
    assert found["without"]["same"]
    assert found["without"]["missed"][0].endswith("Restart the kernel to train on the TPU.")


# -- a TPU of this host --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v3-8", "chips 2x2x1, 2 TensorFlow devices per chip, 8 on each of 1 host"),
        ("v5litepod-8", "chips 2x4x1, 1 TensorFlow device per chip, 8 on each of 1 host"),
    ],
)
def test_on_a_tpu_vm_it_connects_once_and_gives_its_strategy(found: dict[str, Any], name: str, topology: str) -> None:
    seen = found[name]
    assert (seen["kind"], seen["device"], seen["replicas"]) == ("tpu-local", "TPU", 8)
    assert (seen["topology"], seen["strategy"]) == (topology, "FakeTPUStrategy")
    assert (seen["same"], seen["initialised"], seen["master"]) == (True, 1, "")


@pytest.mark.parametrize(
    ("name", "place", "replicas", "why"),
    [
        ("colab v5e-1", "colab", 1, "Colab's TPU image has no TensorFlow since March 2025"),
        ("kaggle v5e-8", "kaggle", 8, "Kaggle's TPU image has tensorflow-cpu"),
    ],
)
def test_on_colab_and_kaggle_as_they_were_recorded(
    found: dict[str, Any], name: str, place: str, replicas: int, why: str
) -> None:
    """Kaggle's variables for several processes do not matter here; that TensorFlow finds no TPU is told before it
    fails, and before it is installed."""
    seen = found[name]
    assert (seen["place"], seen["kind"], seen["replicas"]) == (place, "tpu-local", replicas)
    assert seen["refused"][0] == "TensorFlow does not find a TPU on this host." and seen["refused"][1].startswith(why)


def test_a_colab_without_a_tpu_trains_on_its_cpu(found: dict[str, Any]) -> None:
    assert (found["colab without"]["place"], found["colab without"]["kind"]) == ("colab", "default")


def test_the_strategy_trains(found: dict[str, Any]) -> None:
    assert found["v3-8"]["trained"] > 0


def test_a_tpu_that_the_notebook_has_initialised_is_not_initialised_again(found: dict[str, Any]) -> None:
    seen = found["initialised before"]
    assert (seen["initialised"], seen["replicas"]) == (1, 8)
    assert seen["notes"] == ["The TPU was already initialised in this notebook. It was not initialised again."]


def test_a_tpu_that_another_process_holds(found: dict[str, Any]) -> None:
    what, why, todo = found["held"]
    assert what == "Another process is using the TPU."
    assert "already in use by process with pid 4321" in why and "more lines" not in why
    assert todo.startswith("Stop that process")


def test_a_tensorflow_without_kernels_for_a_tpu_is_explained_from_its_own_error(found: dict[str, Any]) -> None:
    what, why, todo = found["plain"]
    assert what == "The installed TensorFlow has no kernels for a TPU."
    assert "No OpKernel was registered to support Op 'ConfigureDistributedTPU'" in why
    assert 'pip install "tpu-magics[tf-tpu]"' in todo


@pytest.mark.parametrize("about", ["versions", "in use", "tpu", "versions, without a TPU"])
def test_what_is_wrong_with_the_host_is_told_before_tensorflow_is_asked(found: dict[str, Any], about: str) -> None:
    assert found["problems"][about][:3] == ["What.", "Why.", "command, then then"]


@pytest.mark.parametrize("about", ["a warning", "in use, without a TPU"])
def test_what_does_not_stand_in_the_way_is_no_error(found: dict[str, Any], about: str) -> None:
    assert found["problems"][about] == []


# -- what TensorFlow cannot be with ----------------------------------------------------------------------------------


def test_torch_xla_in_the_same_process(found: dict[str, Any]) -> None:
    assert found["alone"][0] == "TensorFlow and torch_xla are both in this kernel."


def test_keras_on_another_backend(found: dict[str, Any]) -> None:
    what, _, todo = found["keras"]
    assert what == "Keras uses the jax backend." and 'os.environ["KERAS_BACKEND"] = "tensorflow"' in todo


def test_without_tensorflow() -> None:
    code = """if True:
        import sys
        sys.modules["tensorflow"] = None  # what an import finds that fails
        sys.modules["keras"] = None
        from tpu_magics.backends.tensorflow import runtime
        from tpu_magics.errors import TpuMagicsError
        try:
            runtime.prepare()
        except TpuMagicsError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert "TensorFlow is not installed." in done.stdout and '%pip install "tpu-magics[tf]"' in done.stdout, done.stderr


def test_where_make_lab_has_made_a_kernel_with_tensorflow_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "%pip install" in not_importable(error).todo
    (tmp_path / "share/jupyter/kernels/tpu-magics-tensorflow").mkdir(parents=True)
    assert not_importable(error).what == "TensorFlow is not installed."
    assert not_importable(error).todo == (
        'Choose the kernel "Python 3 (TensorFlow)", which has it (Kernel > Change Kernel), and run all cells again.'
    )


# -- precision -----------------------------------------------------------------------------------------------------


def test_the_precision_is_that_of_models_made_afterwards(found: dict[str, Any]) -> None:
    seen = found["precision"]
    assert seen["after"] == ["bfloat16", "float32", "float32"]
    assert seen["notes"] == ["Keras' dtype policy is mixed_bfloat16 for layers and models created from now on."]
    assert (seen["again"], seen["nothing asked"], seen["fp32"]) == ([], "mixed_bfloat16", "float32")


def test_models_made_before_keep_theirs_and_that_is_said(found: dict[str, Any]) -> None:
    assert found["precision"]["kept"] == [
        "before was created with the policy float32 and keeps it. Build it again under --precision bf16."
    ]


def test_the_precision_of_one_run_is_put_back(found: dict[str, Any]) -> None:
    seen = found["precision"]
    assert (seen["within"], seen["put back"], seen["put back after an interrupt"]) == (
        "float32",
        *["mixed_bfloat16"] * 2,
    )


def test_downcast_is_refused_with_the_reason(found: dict[str, Any]) -> None:
    what, why, todo = found["precision"]["downcast"]
    assert what == "--precision bf16-downcast does not work with TensorFlow."
    assert "torch_xla" in why and "--precision bf16" in todo
    assert found["precision"]["refused leaves nothing"]
