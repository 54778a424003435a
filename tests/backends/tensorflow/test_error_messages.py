"""Explanations of TensorFlow's errors (with error_program.py)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tensorflow.error_guide import FORMS, LENGTHS
from tpu_magics.check import check_cells, check_text
from tpu_magics.check.cells import cell_of

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("error_program.py")
LITTLE = "proves little"


# -- XLA's rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "what", "code", "rewrite", "little"),
    [
        ("condition in a layer", "A Python condition needs", "if tf.reduce_sum(x) > 10:", "x = x / (1.0 + big)", True),
        ("condition without autograph", "A Python condition needs", "if tf.reduce_sum(x) > 10:", "tf.cond", True),
        ("loop in a layer", "A Python loop runs", "for row in x:", "maximum_iterations", True),
        ("loop without autograph", "A Python loop runs", "for _ in range(tf.cast(", "range(x.shape[0])", True),
        ("list in a loop", "A loop over tensors collects", "for row in x:", "tf.TensorArray", True),
        ("growing loop", "A loop over tensors collects", "while tf.reduce_sum(x) < 100.0:", "tf.TensorArray", True),
        ("gradient of an open loop", "A loop over tensors collects", "return tape.gradient(y, x)", "a bound", True),
        ("value read", "The value of a tensor is read", "return x * x.numpy().mean()", "after the step", False),
        ("value read in a layer", "The value of a tensor is read", "return x[:, : int(", "after the step", False),
        ("random length", "A shape depends on values", "return tf.zeros([n, 2])", "/ tf.reduce_sum(keep)", True),
        ("variable in the step", "The step creates a variable", "v = tf.Variable(1.0)", "outside the step", False),
        ("variable in a layer", "The step creates a variable", "v = tf.Variable(1.0)", "self.add_weight", False),
    ],
)
def test_a_broken_rule(found: dict[str, Any], cell: str, what: str, code: str, rewrite: str, little: bool) -> None:
    said = found["cells"][cell]
    line, words = said["details"]
    place, _, shown = line.partition(": ")
    assert said["what"].startswith(what) and said["what"].endswith(f" at {place}.")
    assert place.startswith("In [3]:") and shown.startswith(code)
    assert rewrite in said["todo"]
    assert (LITTLE in said["why"]) is little
    kind, _, text = words.partition(": ")
    assert kind.endswith("Error") and not text.startswith(kind)  # TensorFlow's own words, once


# -- ops that XLA has not --------------------------------------------------------------------------------------------


def test_every_op_that_runs_on_the_host_is_told_with_its_line(found: dict[str, Any]) -> None:
    said = found["cells"]["two ops"]
    assert said["what"] == "XLA cannot compile AsString at In [3]:3 and 3 more; it would fail on a TPU too."
    assert "StringFormat at In [3]:4" in said["why"] and "PrintV2 at In [3]:4" in said["why"]
    assert "before the step" in said["todo"] and "set_soft_device_placement(True)" in said["todo"]
    assert said["todo"].startswith("To train here without XLA, remove jit_compile=True from the code.")
    lines = ["a = tf.strings.as_string(x)", "tf.print(x)", "return tf.strings.length(a)"]
    assert said["details"] == [f"In [3]:{number}: {line}" for number, line in enumerate(lines, 3)]


def test_in_a_layer_and_while_a_run_is_observed(found: dict[str, Any]) -> None:
    said = found["cells"]["print in a layer"]
    assert said["what"].startswith("XLA cannot compile StringFormat at In [3]:3")
    assert said["details"] == ["In [3]:3: tf.print(x[0])"]
    assert found["observed"] == {"print": said, "condition": found["cells"]["condition in a layer"]}


def test_python_in_the_step(found: dict[str, Any]) -> None:
    assert "EagerPyFunc at In [3]:3: tf.py_function runs on the host" in found["cells"]["python in the step"]["why"]


def test_an_op_that_a_tpu_has_not(found: dict[str, Any]) -> None:
    said, gone = found["with its graph"], found["tpu"]["op of a gradient"]
    assert said["what"] == "XLA cannot compile ExtractImagePatches at In [3]:4."
    assert said["details"][0].startswith("In [3]:4: return tf.image.extract_patches(")
    assert gone["what"] == "XLA cannot compile ExtractImagePatches."
    assert gone["details"] == [] and "another op" in gone["todo"] and "set_soft_device_placement" in gone["todo"]
    assert "--jit keep" not in gone["todo"]  # it is the TPU that refuses it


FAILS, HOME, UNKNOWN = (
    "it would fail on a TPU too",
    "only on this machine: a TPU supports this op",
    "TPU support is unknown",
)
KEEP = "%%tpu_train --jit keep"


@pytest.mark.parametrize(
    ("op", "where", "called", "instead"),
    [
        ("ScaleAndTranslate", FAILS, 'resizing with "lanczos3"', 'interpolation="bilinear"'),
        ("ResizeBicubic", FAILS, 'resizing with "bicubic"', 'interpolation="bilinear"'),
        ("ResizeArea", FAILS, 'resizing with "area"', 'interpolation="bilinear"'),
        ("ResizeNearestNeighborGrad", HOME, 'resizing with "nearest"', "keras.layers.UpSampling2D"),
        ("StatelessRandomGammaV3", FAILS, "CutMix, MixUp", "dataset.map"),
        ("SegmentSum", FAILS, "tf.math.segment_sum", "tf.math.unsorted_segment_sum"),
        ("LogMatrixDeterminant", FAILS, "tf.linalg.slogdet", "tf.linalg.qr"),
        ("ResourceGatherNd", FAILS, "tf.gather_nd of a variable", "tf.convert_to_tensor"),
        ("LogUniformCandidateSampler", FAILS, "tf.nn.nce_loss", "all classes"),
        ("Lu", UNKNOWN, "XLA has no such op", "another op"),
    ],
)
def test_stock_ops_that_fail_under_jit_compile_alone(
    found: dict[str, Any], op: str, where: str, called: str, instead: str
) -> None:
    said = found["stock"]["said"][op]
    assert said["what"].startswith(f"XLA cannot compile {op} at In [3]:") and said["what"].endswith(f"; {where}.")
    assert called in said["why"] and instead in said["todo"] and said["details"][0].startswith("In [3]:")
    assert said["todo"].startswith(f"To train here without XLA: {KEEP}.")
    assert ("set_soft_device_placement" in said["todo"]) is (where != HOME)


def test_a_stock_layer_that_draws_what_xla_cannot(found: dict[str, Any]) -> None:
    said = found["stock"]["said"]["CutMix"]
    assert "StatelessRandomGammaV3" in said["what"] and FAILS in said["what"] and KEEP in said["todo"]


def test_the_table_holds_what_this_tensorflow_lacks(found: dict[str, Any]) -> None:
    """Where TensorFlow has got a kernel for one: take it out of lowering_errors.py."""
    assert found["stock"]["compiled"] > 400 and found["stock"]["has by now"] == []


# -- devices, memory, scopes -----------------------------------------------------------------------------------------


def test_a_variable_on_another_device(found: dict[str, Any]) -> None:
    said = found["cells"]["other device"]
    assert said["what"].startswith("A step compiled for CPU:0 uses Variable/")
    assert said["what"].endswith(", created at In [3]:2, on CPU:1 at In [3]:6.")
    assert said["details"] == ["In [3]:6: step(tf.ones([4]))", "In [3]:2: v = tf.Variable(1.0)"]
    assert "a program for one device" in said["why"]


def test_replicas_that_xla_cannot_compile_at_home(found: dict[str, Any]) -> None:
    said = found["cells"]["replicas"]
    assert "/replica_1" in said["what"] and said["what"].endswith(" at In [3]:5.")
    assert said["todo"].startswith("Remove jit_compile")


@pytest.mark.parametrize("cell", ["optimizer outside", "model outside"])
def test_made_outside_of_the_scope(found: dict[str, Any], cell: str) -> None:
    said = found["cells"][cell]
    assert "outside the strategy's scope, and are used at In [3]:5." in said["what"]
    assert said["details"][0].startswith("In [3]:5: m.fit(") and "with strategy.scope():" in said["todo"]


def test_memory(found: dict[str, Any]) -> None:
    host = found["cells"]["too large"]
    assert (
        host["what"]
        == "A tensor of shape [200000,200000,100] (float) does not fit into the memory of CPU:0 at In [3]:1."
    )
    assert found["tpu"]["memory"]["why"] == "The compiled program needs 8.38G, and 8.00G are available."
    assert found["tpu"]["memory of today"]["why"] == "The compiled program needs 183.87G, and 15.75G are available."
    assert "smaller batch per replica" in found["tpu"]["memory"]["todo"]
    assert found["tpu"]["a long message"] is None


def test_a_tpu_that_is_not_for_this_tensorflow_or_not_here(found: dict[str, Any]) -> None:
    for said in (found["cells"]["no kernels for a TPU"], found["tpu"]["no kernels"]):
        assert said["what"] == "The installed TensorFlow has no kernels for a TPU." and "tf-tpu" in said["todo"]


def test_texts_of_xla_that_only_a_tpu_gives(found: dict[str, Any]) -> None:
    assert found["tpu"]["slice"]["what"] == "A shape depends on values."
    assert found["tpu"]["tensor list"]["what"].startswith("A loop over tensors collects")


# -- all else --------------------------------------------------------------------------------------------------------


def test_names_that_keras_refuses(found: dict[str, Any]) -> None:
    assert found["cells"]["old name"]["what"] == "Keras 3 does not accept the file name x.h5."


@pytest.mark.parametrize(
    "cell", ["shapes that do not fit", "layer that does not fit", "error in the pipeline", "their own"]
)
def test_what_tensorflow_or_the_person_says_best_is_left_alone(found: dict[str, Any], cell: str) -> None:
    assert found["cells"][cell] is None


def test_an_error_that_was_wrapped_and_one_of_ours(found: dict[str, Any]) -> None:
    wrapped, ours = found["chained"]
    assert wrapped == found["cells"]["variable in the step"] and ours is None


def test_installed_packages_are_libraries_wherever_they_lie(found: dict[str, Any]) -> None:
    assert found["libraries"] == [True, True, True]


# -- the guide's three rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "code"), [("condition", "TPU101"), ("shape", "TPU201"), ("batch", "TPU301")])
def test_the_bad_form_is_found_statically_and_the_good_one_is_not(rule: str, code: str) -> None:
    bad, good = FORMS[rule]
    assert code in [one.code for one in check_text(bad)]
    assert check_text(good) == []


@pytest.mark.parametrize(("rule", "code"), [("condition", "TPU101"), ("shape", "TPU201")])
@pytest.mark.parametrize("magic", ["%tpu_init --framework tensorflow", "%tpu_init", "%tpu_preflight step"])
def test_a_notebook_that_trains_with_our_magics_needs_no_other_sign_of_a_tpu(magic: str, rule: str, code: str) -> None:
    bad, good = (text.replace("(jit_compile=True)", "") for text in FORMS[rule])
    assert code in codes(magic, bad)
    assert codes(magic, good) == codes("", bad) == codes("%tpu_init --framework torch", bad) == []


def codes(*texts: str) -> list[str]:
    """What is found in the cells of a notebook."""
    return [one.code for one in check_cells([cell_of(text, "nb.ipynb", n) for n, text in enumerate(texts, 1) if text])]


def test_what_passes_at_home_is_said_to_prove_little(found: dict[str, Any]) -> None:
    """The bad forms below pass; what XLA refuses of the same rules says so."""
    for cell in ("condition in a layer", "random length"):
        assert "tf.unique and tf.boolean_mask pass on CPU" in found["cells"][cell]["why"]


def test_a_condition_passes_on_a_cpu_in_both_forms_with_equal_numbers(found: dict[str, Any]) -> None:
    bad, good = found["rules"]["condition"]
    assert bad == good
    assert sum(bad[0]) <= 10 < 2 * sum(bad[1])  # both branches


def test_a_shape_on_data_passes_on_a_cpu_in_both_forms_with_equal_numbers(found: dict[str, Any]) -> None:
    bad, good = found["rules"]["shape"]
    assert bad == pytest.approx(good, rel=1e-6) and all(math.isfinite(one) for one in bad)


def test_every_length_compiles_anew_unless_it_is_padded(found: dict[str, Any]) -> None:
    bad, good = found["rules"]["batch"]
    assert bad["numbers"] == pytest.approx(good["numbers"], rel=1e-6)
    assert (bad["compiles"], good["compiles"]) == (len({*LENGTHS}), 1)
