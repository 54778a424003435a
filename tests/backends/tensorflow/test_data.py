"""Problems of input pipelines for each kind of TPU, and in_memory (with data_program.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("data_program.py")


# -- where datasets are ----------------------------------------------------------------------------------------------


def test_pipelines_are_found_in_containers_iterators_and_distributed_ones(found: dict[str, Any]) -> None:
    said = {
        name: texts[0].removeprefix("The last batch of ").removesuffix(" has 2 of 4 rows.")
        for name, texts in found["reached"].items()
        if name not in ("other", "twice")
    }
    assert said.pop("splits") == "splits['train'][0]"
    assert said == {name: name for name in ("iterator", "distributed", "from function")}
    assert found["reached"]["other"] == [] and found["reached"]["twice"] == 1


# -- the last batch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["even", "dropped", "only", "taken", "repeated before", "unbatched"])
def test_no_warning_where_the_last_batch_is_as_the_others(found: dict[str, Any], name: str) -> None:
    assert found["last"][name] == []


@pytest.mark.parametrize("name", ["short", "repeated after", "padded"])
def test_a_short_last_batch_is_a_warning_with_the_cure(found: dict[str, Any], name: str) -> None:
    ((what, why, todo, refuses),) = found["last"][name]
    assert what == f"The last batch of {name} has 2 of 4 rows." and not refuses
    assert "XLA compiles the training step once more" in why and "batch(4, drop_remainder=True)" in todo


def test_an_unknown_number_of_rows_may_leave_a_short_one(found: dict[str, Any]) -> None:
    assert found["last"]["unknown"][0][0].startswith("The last batch of unknown may have fewer than 4 rows")


def test_the_compiles_are_those_that_are_told(found: dict[str, Any]) -> None:
    last = found["last"]
    assert last["compiled"] == {name: 1 + len(last[name]) for name in ("short", "even", "dropped", "taken")}


def test_on_a_tpu_the_largest_share_of_the_replicas_decides(found: dict[str, Any]) -> None:
    last = found["last"]
    assert [max(batch) for batch in last["shares"]["nearly full"]] == [4, 4, 4]
    assert "costs no compile (4 rows per replica" in last["by place"]["nearly full"]["tpu"][0][1]
    assert "once more" in last["by place"]["nearly full"]["home"][0][1]
    assert [max(batch) for batch in last["shares"]["third"]] == [4, 2]
    assert "replicas at most 2 rows instead of 4" in last["by place"]["third"]["tpu"][0][1]


# -- what fit is given ----------------------------------------------------------------------------------------------


def test_an_unknown_size_without_steps_per_epoch_is_refused_on_a_tpu(found: dict[str, Any]) -> None:
    fits = found["fits"]
    assert fits["unknown on a TPU"]["steps"] == 0
    assert "given to fit is unknown, and steps_per_epoch is not set" in fits["unknown on a TPU"]["raised"]
    for part in ("steps_per_epoch=", "assert_cardinality", "in_memory"):
        assert part in fits["unknown on a TPU"]["raised"]
    for name in ("unknown with steps", "unknown at home", "known", "evaluate", "validation"):
        assert not fits[name]["raised"] and not fits[name]["said"], name
    assert fits["unknown with steps"]["steps"] == fits["known"]["steps"] == 2


def test_arrays_whose_last_batch_is_short(found: dict[str, Any]) -> None:
    ((what, *_),) = found["fits"]["arrays"]["said"]
    assert what == "The last batch of the data given to fit has 2 of 4 rows."
    assert found["fits"]["even arrays"]["said"] == []


def test_data_made_in_the_cell_is_told_once_and_a_py_dataset_is_not_taken_for_rows(found: dict[str, Any]) -> None:
    fits = found["fits"]
    ((what, *_),) = fits["made in the cell"]["said"]
    assert what == "The last batch of the data given to fit has 2 of 4 rows."
    assert fits["told before"] == {"said": [], "raised": "", "steps": 3}
    assert fits["py dataset"] == {"said": [], "raised": "", "steps": 2}


def test_callbacks_made_in_the_call_are_tried_before_the_first_step(found: dict[str, Any]) -> None:
    fits = found["fits"]
    for name in ("callback", "backup"):
        assert fits[name]["raised"].startswith("Cannot save to /proc") and fits[name]["steps"] == 0
    assert fits["good callback"] == fits["tried before"] == {"said": [], "raised": "", "steps": 2}


def test_a_dataset_without_an_end_is_said(found: dict[str, Any]) -> None:
    ((what, _, todo, refuses),) = found["fits"]["endless"]
    assert "is infinite" in what and "steps_per_epoch" in todo and not refuses


def test_keras_is_left_as_it_was_and_another_one_is_said(found: dict[str, Any]) -> None:
    assert found["fits"]["left as it was"]
    ((what, why, *_),) = found["fits"]["another Keras"]
    assert "not checked" in what and "TFEpochIterator" in why


# -- in memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"), [("generated", 7), ("mapped", 7), ("batched", 3), ("pairs", 2), ("dropped", 2), ("rebatched", 3)]
)
def test_it_equals_its_source_element_by_element(found: dict[str, Any], name: str, size: int) -> None:
    made = found["memory"][name]
    assert made["same"] and made["size"] == size
    if name != "batched":  # which was asked to keep its short last batch
        assert made["static"] and made["problems"] == []


def test_a_hugging_face_dataset_is_padded_to_a_multiple(found: dict[str, Any]) -> None:
    made = found["memory"]["hugging face"]
    assert made["size"] == 5 and made["static"] and made["types"] == ["int64", "int64"] and made["problems"] == []
    assert made["first"] == [1, 2, 3, 4, -1, -1, -1, -1]
    assert made["reads"] == [1000, 1000, 500]
    assert found["memory"]["transformed"] == [{"x": 1}, {"x": 2}]


def test_texts_and_several_splits_are_refused_by_name(found: dict[str, Any]) -> None:
    assert found["memory"]["hugging face text"].startswith("The column text contains text.")
    assert "remove_columns('text')" in found["memory"]["hugging face text"]
    assert "'train', 'test'" in found["memory"]["splits"] and "dataset['train']" in found["memory"]["splits"]


def test_arrays_lists_functions_and_keras_datasets(found: dict[str, Any]) -> None:
    memory = found["memory"]
    assert memory["function"] and memory["generator"] == 7
    assert memory["py dataset"][1] == [[[1, 1], [1, 1]], [1, 1]]
    assert memory["columns"] == [[[0, 1], [[1], [2]]], [[2, 3], [[3], [4]]]]
    assert memory["array"] == [0, 1, 2]
    assert memory["lists"] == [{"ids": [1, 2, 3], "y": 0.5}, {"ids": [1, 0, 0], "y": 1.5}]
    assert memory["types"] == ["int32", "int64", "float32", "bool"]
    assert memory["limited"] == [0, 0, 0] and memory["limited batches"] == [[0, 1, 2, 3], [4, 5]]
    assert memory["ragged"] == [[1, 2, -1], [3, -1, -1], [4, 5, 6]]
    assert memory["ragged batches"] == [[[1, 2, 0], [3, 0, 0]], [[4, 5, 6]]]
    assert memory["sparse"] == [[[1, 0], [0, 2]]]
    assert memory["shuffled"] == list(range(9)) and memory["seeded"] and not memory["in order"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text", "The column t contains text."),
        ("none", "The column x contains Python objects"),
        ("ragged", "The column ids has rows of different shapes: [1], [2]."),
        ("endless", "The dataset is infinite."),
        ("empty", "The dataset is empty."),
        ("no rows", "A int contains no rows."),
        ("few rows", "2 rows are fewer than one batch of 3."),
        ("other columns", "Row 1 has the columns b, but earlier rows have a."),
        ("lengths", "The columns have different numbers of rows: [0] 3, [1] 4."),
        ("batch size", "batch_size is 0."),
        ("pad", "pad is 'max'."),
    ],
)
def test_what_cannot_be_is_told(found: dict[str, Any], name: str, text: str) -> None:
    said = found["memory"]["errors"][name]
    assert said.startswith(text) and "What to do:" in said


def test_what_does_not_fit_is_told_before_memory_is_gone(found: dict[str, Any]) -> None:
    large = found["memory"]["too large"]
    text, read = large["endless"]
    assert "does not fit in memory" in text and read == 100  # rows of 100 kB, of which 300 copies are 30 MB
    assert "its 1,000,000,000 rows of about 4.0 KiB take 11511.1 GiB, and 953.7 MiB are available" in large["counted"]
    assert "Use limit=123 or less" in large["arrays"] and large["fits"] == 100
