"""Checkpoints are restored exactly, earlier ones survive, and paths are tested (with checkpoint_program.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("checkpoint_program.py")
FILES = ("model.keras", "model.weights.h5", "folder")


# -- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["local", "ram"])  # "ram://": TensorFlow's own file system that is not a local one
def test_three_steps_and_three_more_are_six_to_the_last_bit(found: dict[str, Any], place: str, name: str) -> None:
    one = found["resume"][f"{place} {name}"]
    assert one["loaded"] and one["same"]
    assert one["path"] == ("folder/ckpt-3" if name == "folder" else name)


def test_keras_reads_the_file(found: dict[str, Any]) -> None:
    assert found["resume"]["keras reads it"]


def test_variables_of_a_strategy_come_back(found: dict[str, Any]) -> None:
    assert found["distributed"] == dict.fromkeys(FILES, True)


def test_a_loop_of_ones_own_goes_on_with_its_step_and_its_variables(found: dict[str, Any]) -> None:
    loop = found["loop"]
    assert loop["empty"] == [0, False]
    assert loop["prefix"] == "ckpt-3" and loop["restored"] == 3 and loop["same"]


def test_a_folder_keeps_as_many_as_was_asked_and_no_name_comes_twice(found: dict[str, Any]) -> None:
    loop = found["loop"]
    assert loop["names"] == ["ckpt-6", "ckpt-7", "ckpt-8"] and loop["latest"] == "ckpt-8"
    kept = [f"ckpt-{number}.{end}" for number in (7, 8) for end in ("data-00000-of-00001", "index")]
    assert loop["kept"] == ["checkpoint", *kept]


def test_what_was_saved_without_an_optimizer_is_read_into_a_compiled_model_and_back(found: dict[str, Any]) -> None:
    foreign = dict(found["foreign"])
    assert "Remove the ending" in foreign.pop("no model of Keras")
    assert "not in the checkpoint: " in foreign.pop("more layers")
    names = ["old.ckpt", *FILES, *(f"compiled {name}" for name in FILES), "module"]
    assert foreign == dict.fromkeys(names, True)


# -- what breaks off ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*(f"KeyboardInterrupt {name}" for name in FILES), "OSError folder"])
def test_a_write_that_breaks_off_leaves_the_earlier_one_and_nothing_else(found: dict[str, Any], case: str) -> None:
    one = found["broken"][case]
    assert one["raised"] == case.split()[0]
    assert one["same files"] and one["loads"] and one["then"]


def test_what_a_killed_process_leaves_is_not_read_and_not_in_the_way(found: dict[str, Any]) -> None:
    assert found["killed"] == {"loads": True, "prefix": "ckpt-3", "then": True}


# -- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("folder missing", "does not exist."),
        ("taken by a directory", "taken.keras: it is a directory."),
        ("taken by a file", "a file with this name exists, and a folder is needed."),
        ("under a file", "file is not a directory."),
        ("not writable", "Writing to /proc failed: "),
        ("before training", "Cannot save to /proc/checkpoints."),
        ("empty", "The path is empty."),
        ("old name", "a.weights.h5"),
        ("unbuilt", "is not built"),
        ("missing", "contains file, good, good.keras"),
        ("other shapes", "The model is unchanged.\nWhy: ValueError: A total of 4 objects could not be loaded"),
        ("other shapes in a folder", "incompatible tensor with shape (8,)"),
        ("torn", "BadZipFile"),
        ("torn weights", "truncated file"),
        ("nothing", "There is nothing to save."),
        ("step is a number", "Pass step=tf.Variable(0, dtype=tf.int64)"),
        ("two optimizers", "Remove the ending"),
        ("optimizer unbuilt", "Call optimizer.build(model.trainable_variables) first"),
    ],
)
def test_what_cannot_be_is_told(found: dict[str, Any], case: str, text: str) -> None:
    assert text in found["refused"][case] and "What to do:" in found["refused"][case]


def test_what_was_refused_changed_nothing(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert refused["unchanged"] and refused["left"] == [] and refused["writable"]
    assert refused["no room"].startswith("Not enough disk space for ")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("anonymous", "you are not logged in to Google Cloud."),
        ("no credentials", "you are not logged in to Google Cloud."),
        ("denied", "person@example.com has no permission to write there."),
        ("no bucket", "there is no bucket gs://bucket."),
        ("unreachable", "Google Cloud Storage does not answer."),
        ("silent", "Google Cloud Storage does not answer."),
    ],
)
def test_a_buckets_refusal_is_told_with_how_to_log_in_here(found: dict[str, Any], case: str, text: str) -> None:
    buckets = found["buckets"][case]
    what, why, todo = buckets["colab"]
    assert what.startswith("Cannot save to gs://bucket/model") and what.endswith(text) and why
    assert "auth.authenticate_user()" in todo and "gcloud config set project" in todo
    if "elsewhere" in buckets:
        assert "gcloud auth application-default login" in buckets["elsewhere"][2]
        assert "google.colab" not in buckets["elsewhere"][2]


def test_a_bucket_is_tried_beside_the_file_and_for_a_bounded_time(found: dict[str, Any]) -> None:
    buckets = found["buckets"]
    assert buckets["good"] == [] and buckets["tries"] == ["gs://bucket/runs"]
    assert buckets["ram"] and buckets["ram holds"] == []
    assert 0.3 <= buckets["seconds"] < 2.5
    assert "tensorflow-io-gcs-filesystem" in buckets["no file system"]["colab"][2]


def test_callbacks_and_managers_are_looked_at_before_training(found: dict[str, Any]) -> None:
    assert found["known"] == ["Cannot save to /proc."]


@pytest.mark.parametrize(
    ("case", "what"),
    [
        ("old name", "Keras 3 does not accept the file name x.h5."),
        ("old name in a variable", "Keras 3 does not accept the file name best.h5."),
        ("model of the cell", "Keras 3 does not accept the file name x.tf."),
        ("no ending", "Keras 3 does not accept the file name x."),
        ("no place", "Cannot save to /proc."),
        ("no place for ours", "Cannot save to /proc."),
        ("no place by its name", "Cannot save to /proc."),
        ("no place for a loop", "Cannot save to /proc."),
        ("in the function", "Keras 3 does not accept the file name x.h5."),
    ],
)
def test_what_the_code_saves_to_is_tried_before_it_trains(found: dict[str, Any], case: str, what: str) -> None:
    assert found["calls"][case] == [[what, True]]


def test_a_save_that_may_never_come_is_said_and_what_is_good_is_not(found: dict[str, Any]) -> None:
    assert found["calls"]["in a branch"] == [["Keras 3 does not accept the file name x.h5.", False]]
    assert found["calls"]["good"] == found["calls"]["not of a model"] == []


def test_a_bucket_that_the_code_names_is_tried_before_it_trains(found: dict[str, Any]) -> None:
    what, todo, refuses = found["calls"]["bucket"]
    assert what == "Cannot save to gs://bucket/model.keras: you are not logged in to Google Cloud." and refuses
    assert "auth.authenticate_user()" in todo and "gcloud config set project" in todo


# -- Keras 3's names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("save_weights", '"x.weights.h5"'),
        ("save", '"runs/folder.keras"'),
        ("save_format", 'model.save("model.keras")'),
        ("load_model", "keras.layers.TFSMLayer("),
        ("load_weights", 'tpu_magics.tf.load(model, "runs/ckpt")'),
        ("ModelCheckpoint", '"best.keras"'),
        ("ModelCheckpoint weights", '"best.weights.h5"'),
    ],
)
def test_a_refused_name_is_explained_with_the_new_one(found: dict[str, Any], case: str, text: str) -> None:
    assert text in found["names"][case]


def test_other_errors_are_left_to_others(found: dict[str, Any]) -> None:
    assert found["names"]["other"] == ""
