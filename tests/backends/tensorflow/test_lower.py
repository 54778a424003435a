"""TensorFlow's steps as the preflight gets them: lower_program.py lowers them in a process of its own, once."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tpu_magics.backends.lowered import LoweredGraph, OpScope
from tpu_magics.backends.tensorflow import is_step
from tpu_magics.backends.tensorflow.lower import lower, scope_of
from tpu_magics.errors import TpuMagicsError

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
STEPS = Path(__file__).with_name("lower_program.py")
MODELS = ("dense", "convolution", "transformer", "recurrent")


def report(what: str, folder: Path) -> dict[str, Any]:
    return overlay.report(STEPS, what, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return report("all", folder)


# -- a step whose values all have shapes of their own ---------------------------------------------------------------


def test_parameters_are_arguments_and_captures_by_name(found: dict[str, Any]) -> None:
    assert found["typed"]["parameters"] == [
        *("f32[4,3] x", "f32[5] scale", "s64[] count", "f32[11,2] a captured tensor"),
        *("f32[7] slot", "f32[2,3] shift", "f32[3,5] weight"),
    ]


def test_variables_that_are_assigned_are_donors_in_loops_and_branches_too(found: dict[str, Any]) -> None:
    typed = found["typed"]
    donors = [typed["parameters"][number].split()[1] for number in typed["donors"]]
    assert donors == ["count", "slot", "shift"]


def test_ops_have_their_line_as_typed_in_the_cell(found: dict[str, Any]) -> None:
    typed = found["typed"]
    lines = dict(typed["lines"])
    assert typed["paths"] == ["In [3]"] and typed["site"] == "In [3]:2"
    assert lines["StatefulPartitionedCall/matmul"] == "return x @ weight + scale"
    assert lines["while/AssignAddVariableOp"].startswith("slot.assign_add(")
    assert lines["cond/mul"] == "shift.assign(shift * 2.0)"


def test_a_step_is_one_steady_graph_of_one_replica(found: dict[str, Any]) -> None:
    syncs, settled, graphs, replicas, steady = found["typed"]["counts"]
    assert (syncs, settled, graphs, replicas, steady) == (1, True, 1, 1, True)
    assert found["typed"]["form"] == "hlo" and found["typed"]["batch"] == 4
    assert any("one replica" in note for note in found["model"]["notes"])


# -- Keras ----------------------------------------------------------------------------------------------------------


def test_no_variable_and_no_random_generator_changes(found: dict[str, Any]) -> None:
    model = found["model"]
    assert model["some"] and model["unchanged"] and model["drawn"]
    assert model["trained after"]


def test_weights_state_and_metrics_are_donors_and_arguments_are_not(found: dict[str, Any]) -> None:
    model = found["model"]
    kept = [text for number, text in enumerate(model["parameters"]) if number not in model["donors"]]
    assert kept[:2] == ["f32[32,20] x", "s32[32] y"]  # float64 became floatx, as `fit` makes it
    assert [text.split()[-1].rpartition("/")[2] for text in kept[2:]] == ["learning_rate"]
    assert model["batch"] == 32


def test_a_model_its_train_step_and_a_dataset_give_one_module(found: dict[str, Any]) -> None:
    assert found["model"]["same module"] == [True, True]


def test_the_hash_is_of_the_graph_not_of_the_process(found: dict[str, Any], folder: Path) -> None:
    model = found["model"]
    assert model["hash"] == model["hash of a twin"] != model["hash of another batch"]
    assert report("hash", folder)["hash"] == model["hash"]


@pytest.mark.long
def test_the_hash_is_the_same_in_a_python_with_other_hashes_of_its_own(found: dict[str, Any], folder: Path) -> None:
    """A fork has those of the process it comes from."""
    variables = {**os.environ, "PYTHONPATH": overlay.python_path(), "PYTHONHASHSEED": "7"}
    command = [sys.executable, str(STEPS), "hash", str(folder)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["hash"] == found["model"]["hash"]


def test_a_model_that_is_not_built_is_built(found: dict[str, Any]) -> None:
    assert not found["unbuilt"]["built"]
    assert "f32[3,5] kernel" in found["unbuilt"]["parameters"]


def test_a_custom_loop_whose_optimizer_has_no_state_yet(found: dict[str, Any]) -> None:
    loop = found["loop"]
    assert loop["unchanged"] and loop["same"] and loop["seen"] == 0.0
    assert loop["state"] == [0.0, pytest.approx(1e-2), 0.0, 0.0, 0.0, 0.0]  # made, and no step taken
    names = [text.rpartition("/")[2] for text in loop["donors"]]
    assert names[:3] == ["kernel", "bias", "iteration"] and names[-2:] == ["total", "count"]
    assert len([name for name in names if name.endswith(("momentum", "velocity"))]) == 4
    assert "gradients = tape.gradient(loss, model.trainable_variables)" in loop["codes"]


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "parameters"),
    [
        ("iterator", ["f32[5,3] batches[0]", "s64[5] batches[1]"]),
        ("two", ["f32[5,3] x", "s64[5] y"]),
        ("one", ["f32[5,3] batch[0]", "s64[5] batch[1]"]),
        ("nested", ["f32[2,3] batch['ids'][0]"]),
        ("shape", []),
    ],
)
def test_arguments_become_parameters(found: dict[str, Any], what: str, parameters: list[str]) -> None:
    assert found["arguments"][what] == parameters


def test_no_batch_is_taken_from_an_iterator(found: dict[str, Any]) -> None:
    assert found["arguments"]["iterator is where it was"] == 1.0


def test_a_batch_is_read_only_where_the_spec_leaves_its_size_open_and_that_is_told(found: dict[str, Any]) -> None:
    assert found["arguments"]["read"] == [["f32[4,3] batch[0]", "s64[4] batch[1]"], 4, True]
    assert not found["arguments"]["not read"]


def test_which_functions_are_tensorflows(found: dict[str, Any]) -> None:
    told = found["is_step"]
    assert not told.pop("other") and all(told.values()) and len(told) == 6


def test_without_tensorflow_no_function_is_and_nothing_is_imported() -> None:
    code = "import sys\nfrom tpu_magics.backends.tensorflow import is_step\n"
    code += "assert not is_step(print)\nassert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert not is_step(len, ([],))


# -- what has no program --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "what", "todo", "code"),
    [
        (
            "branch_in_layer",
            "own.train_step cannot be traced at ",
            "Use tf.cond or tf.where",
            "if tf.reduce_sum(x) > 10:",
        ),
        ("no_kernel", "XLA cannot compile: MatrixDeterminant at ", "tf.linalg.qr", "tf.linalg.det(x)"),
        ("read_by_host", "step cannot be traced at ", "return the tensor", "return x.numpy()"),
        ("shape_from_spec", "TensorFlow cannot lower step to XLA.", "as an array", "return tf.zeros(size)"),
    ],
)
def test_a_refusal_names_the_line(found: dict[str, Any], step: str, what: str, todo: str, code: str) -> None:
    told = found["refused"][step]
    assert what in told["what"] and todo in told["todo"]
    assert any(STEPS.name in line and code in line for line in told["details"])


def test_all_ops_of_the_host_are_told(found: dict[str, Any]) -> None:
    told = found["refused"]["host_ops"]
    assert all(name in told["why"] for name in ("tf.print", "tf.numpy_function")) and "tf.data pipeline" in told["todo"]
    assert len(told["details"]) == 2


@pytest.mark.parametrize(
    ("step", "what", "todo"),
    [
        ("open_shape", "The shape of x is not known: (None, 3).", "drop_remainder=True"),
        ("ragged", "x is a RaggedTensor.", "to_tensor"),
        ("uncompiled", "is not compiled.", "model.compile("),
        ("fit_itself", "model.fit runs more than one step.", "Pass the model and one batch"),
        ("calls_fit", "train cannot be traced", "Pass the model and one batch"),
        ("two_replicas", "cannot be traced", "outside a strategy with several replicas"),
    ],
)
def test_what_has_no_shape_or_step_is_refused(found: dict[str, Any], step: str, what: str, todo: str) -> None:
    assert what in found["refused"][step]["what"] and todo in found["refused"][step]["todo"]


def test_torch_xla_in_the_process_is_refused() -> None:
    pytest.importorskip("torch_xla")
    with pytest.raises(TpuMagicsError, match="TensorFlow and torch_xla are both in this kernel") as told:
        lower(lambda x: x)
    assert "Restart the kernel" in told.value.todo


# -- notes ----------------------------------------------------------------------------------------------------------


def test_a_shape_that_depends_on_values_is_noted_with_its_line(found: dict[str, Any]) -> None:
    assert any(
        f"Where at {STEPS}:" in note and "the largest possible shape" in note for note in found["notes"]["growing"]
    )


def test_precision_that_comes_too_late_is_noted(found: dict[str, Any]) -> None:
    notes = found["notes"]
    assert any("was created with the policy float32 and keeps it" in note for note in notes["kept policy"])
    assert any("models created afterwards" in note for note in notes["function"])
    assert len(notes["its policy"]) == len(notes["kept policy"]) - 1
    assert notes["multiplies in"] == [["F32"], ["BF16"]]


# -- for the compiler -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("found")
def test_a_tpus_compiler_takes_what_was_lowered_for_a_cpu(folder: Path) -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed (the extra preflight, Python 3.11 or newer)")
    from tpu_magics.preflight.compilation import compile_graphs
    from tpu_magics.preflight.targets import parse

    graphs: list[LoweredGraph] = [pickle.loads((folder / f"{name}.pickle").read_bytes()) for name in MODELS]
    results = compile_graphs(graphs, parse("v5e-1"), store=None, on_progress=lambda _: None)
    for name, graph, compiled in zip(MODELS, graphs, results, strict=True):
        assert compiled.status == "fits", f"{name}: {compiled.error}"
        donated = sum(size(graph.parameters[number]) for number in graph.donors)
        assert compiled.memory is not None and compiled.memory.aliased is not None
        assert donated <= compiled.memory.aliased < compiled.memory.arguments, name


@pytest.mark.long
def test_a_model_and_a_function_are_preflighted(folder: Path) -> None:
    """All the way from Keras to the text that a user reads."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed (the extra preflight, Python 3.11 or newer)")
    found = report("preflight", folder)
    for name, batch in (("model", 32), ("function", 64)):
        text, [result] = " ".join(found[name]["text"].split()), found[name]["json"]["results"]
        assert (result["status"], result["trace"]["batch"], result["ranks"]) == ("fits", batch, None), text
        assert f"batch {batch} on one replica" in text and "the program of one replica" in text
        assert result["roofline"]["flops"] > 0 and result["samples_per_second"]["every"] is None
        assert result["roofline"]["matmul_share"] is not None and result["verdict"]["suits"] is False, "it is tiny"
        assert "The all-reduce of gradients that a strategy with several replicas adds" in text
    assert found["model"]["json"]["function"] != found["function"]["json"]["function"]
    [bf16] = [one for one in found["model"]["json"]["advice"]["tried"] if one["what"] == "multiply in bf16"]
    assert bf16["after"]["status"] == "fits" and not bf16["error"]
    few, many = found["compared"]["json"]["compared"]
    assert (few["variant"], many["variant"]) == ("rows=64", "rows=512")
    assert few["results"][0]["least"] < many["results"][0]["least"]


def size(parameter: str) -> int:
    """Bytes of "f32[3,5] name"."""
    bits, shape = re.match(r"[a-z]+(\d+)\[([\d,]*)\]", parameter).groups()
    return int(bits) // 8 * math.prod(map(int, filter(None, shape.split(","))))


@pytest.mark.parametrize(
    ("name", "module", "phase"),
    [
        ("sequential_1/dense_1/MatMul", "sequential_1.dense_1", "forward"),
        ("gradient_tape/sequential_1/dense_1/MatMul/MatMul_1", "sequential_1.dense_1", "backward"),
        ("gradient_tape/model/norm/moments/mul_1", "model.norm", "backward"),
        ("adam/Sqrt_3", "adam", "optimizer"),
        ("adam_2/Mul", "adam_2", "optimizer"),
        ("div_no_nan", "", ""),
        ("compile_loss/mse/Sum", "compile_loss.mse", "forward"),
    ],
)
def test_names_of_operations_say_what_they_belong_to(name: str, module: str, phase: str) -> None:
    assert scope_of(name) == OpScope(module, phase)
