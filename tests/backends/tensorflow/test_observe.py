"""What is recorded of TensorFlow runs (with observe_program.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tpu_magics.runs.events import CAUSES

pytestmark = pytest.mark.process

PROGRAMS = Path(__file__).with_name("observe_program.py")


def report(folder: Path, what: str, *arguments: str, **environment: str) -> dict[str, Any]:
    target = folder / f"{what}.json"
    overlay.run(PROGRAMS, what, target, *arguments, **environment)
    return json.loads(target.read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report(tmp_path_factory.mktemp("watched"), "watched")


def of(run: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    assert "error" not in run, run.get("error")
    return [event for event in run["events"] if event["kind"] == kind]


def texts(run: dict[str, Any], code: str) -> list[str]:
    return [event["text"] for event in of(run, "warning") if event["code"] == code]


# -- compiles are those that XLA did ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("dumps")
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    return report(tmp_path_factory.mktemp("counted"), "counted", str(folder), XLA_FLAGS=flags)


@pytest.mark.long
def test_compiles_are_the_modules_that_xla_dumps_for_the_same_program(
    found: dict[str, Any], counted: dict[str, Any]
) -> None:
    modules = counted["modules"]
    some = {"keras_last_batch": 2, "lengths": 3, "python_number": 5, "under_a_tape": 2, "evaluated": 2, "mixed": 1}
    assert len(modules) > 15 and modules == {**modules, **some}
    assert {name: len(of(found[name], "compile")) for name in modules} == modules
    assert {name: found[name]["numbers"][1] for name in modules} == modules


@pytest.mark.long
def test_compiles_are_read_in_a_dump_folder_of_the_persons_own_which_is_left_alone(
    counted: dict[str, Any], found: dict[str, Any]
) -> None:
    run = counted["theirs"]
    assert run["numbers"] == found["lengths"]["numbers"] and texts(run, "not-observed") == []
    assert [one["seconds"] > 0 for one in of(run, "compile")] == [True] * 3
    assert run["dumped"] == 3 + 1  # and the one that shows whether it can be read
    assert run["overwritten"] == [3, 3]


def test_a_dump_that_has_no_text_is_told(tmp_path: Path) -> None:
    flags = f"--xla_dump_to={tmp_path / 'dumps'} --xla_dump_hlo_module_re=nothing"
    run = report(tmp_path, "too late", XLA_FLAGS=flags)
    [text] = texts(run, "not-observed")
    assert text.startswith(f"Compiles are not recorded: XLA_FLAGS sends XLA's dump to {tmp_path / 'dumps'}, but XLA")


def test_where_xla_compiled_before_compiles_are_not_available_and_steps_are(tmp_path: Path) -> None:
    run = report(tmp_path, "too late")
    assert run["numbers"] == [4, None, None] and not of(run, "compile")
    (text,) = texts(run, "not-observed")
    assert text.startswith("Compiles are not recorded: XLA had already compiled before this run")


# -- causes -----------------------------------------------------------------------------------------------------------

X16, X8 = "x now float32[8,8], before float32[16,8]", "y now float32[8,1], before float32[16,1]"
RECOMPILES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "keras_last_batch": [("last-batch", ("8 samples instead of 16", "drop_remainder=True", X16, X8))],
    "arrays_last_batch": [("last-batch", ("8 samples instead of 16", "batch_size that divides", X16))],
    "loop_last_batch": [("last-batch", ("8 samples instead of 16", "drop_remainder=True", X16))],
    "full_batches": [],
    "lengths": [
        ("input-shape", ("values now float32[5], before float32[3]", "padded_batch", "pad_to_multiple_of")),
        ("input-shape", ("values now float32[7], before float32[5]", "input_signature")),
    ],
    "python_number": [
        ("python-number", (f"rate is now {now}, before {before}", f"rate=tf.constant({now})"))
        for before, now in ((0.5, 0.25), (0.25, 0.125), (0.125, 0.0625), (0.0625, 0.03125))
    ],
    "dtypes": [("input-dtype", ("ids now int64[3], before int32[3]", "tf.cast"))],
    "evaluated": [("mode-switch", ("evaluation now, training before", "x now float32[10,8]"))],
    "flagged": [("mode-switch", ("training is now False, before True",))],
    "state_as_argument": [("optimizer-state", ("speed is now an argument (float32[8,1])", "Expected: "))],
    "made_in_loop": [("new-code", ("body is a new tf.function", "outside the loop"))],
    "compiled_in_loop": [("new-code", ("model.compile was called again", "before the loop"))],
    "two_programs": [("new-code", ("more than one program; this one is second",))],
}


@pytest.mark.parametrize("name", RECOMPILES)
def test_each_cause_is_told_with_its_evidence_and_fix(found: dict[str, Any], name: str) -> None:
    first, *rest = of(found[name], "compile")
    assert (first["nth"], first["recompile"], first["cause"]) == (0, False, "")
    assert [one["cause"] for one in rest] == [cause for cause, _ in RECOMPILES[name]]
    for number, (one, (cause, words)) in enumerate(zip(rest, RECOMPILES[name], strict=True), 1):
        assert cause in CAUSES and one["nth"] == number and one["recompile"]
        said = " ".join([one["text"], one["fix"], *one["difference"]])
        assert [word for word in words if word not in said] == []
        assert len(one["text"]) < 240 and len(one["fix"]) < 240  # longer ones would be cut


@pytest.mark.parametrize("name", RECOMPILES)
def test_the_site_is_the_line_that_calls_the_step(found: dict[str, Any], name: str) -> None:
    lines = PROGRAMS.read_text().splitlines()
    for one in of(found[name], "compile"):
        assert one["site"]["path"] == str(PROGRAMS)
        assert lines[one["site"]["line"] - 1].endswith("# site") and one["site"]["function"] == name


def test_a_compile_tells_inputs_seconds_and_memory(found: dict[str, Any]) -> None:
    first, second = of(found["keras_last_batch"], "compile")
    assert [(one["name"], one["shape"], one["dtype"]) for one in first["inputs"]] == [
        ("x", [16, 8], "float32"),
        ("y", [16, 1], "float32"),
    ]
    assert 0 < first["seconds"] < 60 and first["graph"] != second["graph"] and second["nearest"] == 0
    four_bytes = 16 * 8 + 16 + 8 + 1  # the batch and the weights, among other things
    assert first["memory"]["arguments"] >= 4 * four_bytes
    assert first["memory"]["aliased"] >= 4 * (8 + 1) and first["memory"]["temporaries"] > 0


def test_a_cell_is_named_as_the_person_knows_it(found: dict[str, Any]) -> None:
    (one,) = of(found["in_a_cell"], "compile")
    assert (one["site"]["path"], one["site"]["line"], one["site"]["cell_id"]) == ("In [7]", 3, "abc")
    assert one["site"]["function"] == "train"


def test_a_step_inside_a_function_of_an_earlier_cell_is_told_too(found: dict[str, Any]) -> None:
    run = found["traced before"]
    assert not texts(run, "observing-stopped") and run["numbers"] == [3, 2, 1]
    first, second = of(run, "compile")
    assert [(one["name"], one["shape"]) for one in first["inputs"]] == [("x", [3, 8])]
    assert (second["cause"], second["difference"]) == ("input-shape", ["x now float32[4,8], before float32[3,8]"])


def test_forward_and_gradient_are_two_compiles_at_their_lines(found: dict[str, Any]) -> None:
    run = found["under_a_tape"]
    lines = PROGRAMS.read_text().splitlines()
    code = [lines[one["site"]["line"] - 1].strip() for one in of(run, "compile")]
    assert code == ["value = loss(tf.ones((4, 8)))", "variable.assign_sub(0.1 * tape.gradient(value, variable))"]
    assert run["numbers"] == [0, 2, 0]


# -- retraces ---------------------------------------------------------------------------------------------------------


def test_a_retrace_is_told_with_what_differs_in_tensorflows_cache(found: dict[str, Any]) -> None:
    told = texts(found["python_number"], "retrace")
    assert len(told) == 4  # of a function, three one by one and then how many there were
    assert told[0].startswith("step was traced again: rate is now Literal[0.25], before Literal[0.5].")
    assert told[3].startswith("step was traced again 4 times in this run; only the first 3 are listed.")
    (dtype,) = texts(found["dtypes"], "retrace")
    assert "ids is now TensorSpec((3,), int64), before TensorSpec((3,), int32)" in dtype


def test_one_relaxed_trace_with_many_compiles_is_no_retrace(found: dict[str, Any]) -> None:
    assert not texts(found["lengths"], "retrace") and not texts(found["keras_last_batch"], "retrace")


def test_keras_own_step_tells_of_its_batches_and_not_of_its_iterator_too(found: dict[str, Any]) -> None:
    (told,) = texts(found["other_batches"], "retrace")
    assert told.startswith("Keras' one_step_on_data was traced again: data[0] is now TensorSpec((None, ")
    assert told.endswith("Give it batches of the same shapes and dtypes each time.")


def test_of_keras_functions_the_innermost_tells(found: dict[str, Any]) -> None:
    """predict has one more around its step, which is traced again with it."""
    (told,) = texts(found["predicted"], "retrace")
    assert told.startswith("Keras' one_step_on_data was traced again: data is now TensorSpec((None, ")
    assert not texts(found["other_steps"], "retrace")


def test_what_the_guides_form_gives_to_strategy_run_has_inputs_and_causes(found: dict[str, Any]) -> None:
    seen = found["guides_steps"]
    first, again = of(seen, "compile")
    assert seen["numbers"] == [3, 2, 1]
    assert [one["name"] for one in first["inputs"]] == ["x", "y"] and again["cause"] == "last-batch"


def test_a_train_step_that_returns_its_metrics_by_name_logs_those_of_compile_too(found: dict[str, Any]) -> None:
    values = {one["name"]: one["value"] for one in of(found["own_train_step"], "value")}
    assert set(values) == {"loss", "mae"} and all(isinstance(one, float) for one in values.values())


def test_what_an_earlier_run_traced_and_compiled_is_neither_traced_nor_compiled_again(found: dict[str, Any]) -> None:
    first, second = found["twice"]
    assert first["numbers"] == [3, 2, 1] and len(texts(first, "retrace")) == 1
    assert second["numbers"] == [3, 0, 0] and texts(second, "retrace") == []


# -- steps ------------------------------------------------------------------------------------------------------------

STEPS = {
    "keras_last_batch": 6,
    "full_batches": 4,
    "loop_last_batch": 3,
    "python_number": 6,
    "evaluated": 2,
    "flagged": 0,
    "no_steps": 0,
    "under_a_tape": 0,
    "many_steps": 10,  # 4, 4 and 2
    "other_steps": 5,  # two of train_on_batch, three of an optimizer
    "strategy_steps": 2,
    "raises": 2,
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_the_calls_that_train(found: dict[str, Any], name: str) -> None:
    events = of(found[name], "steps")
    assert found[name]["numbers"][0] == STEPS[name]
    assert sum(one["n"] for one in events) == STEPS[name]
    assert not STEPS[name] or sum(one.get("compiled", 0) for one in events) > 0


TOTALS = {
    "keras_last_batch": [(6, "3 batches x 2 epochs")],
    "evaluated": [(2, "2 batches")],  # validation is no step
    "many_steps": [(10, "10 batches")],
    "later_epochs": [(15, "5 batches x 3 epochs")],
    "some_steps_each_epoch": [(8, "4 batches x 2 epochs")],
    "stops_early": [(25, "5 batches x 5 epochs"), (10, "5 batches x 5 epochs")],
    "loop_over_a_dataset": [(8, "4 batches x 2 epochs")],
    "loop_over_a_distributed_dataset": [(6, "2 batches x 3 epochs")],
    "data_that_end_in_an_epoch": [],
    "unknown_number": [],
    "compiled_in_loop": [],  # fit is called in a loop
    "python_number": [],
}


@pytest.mark.parametrize("name", TOTALS)
def test_the_number_of_all_steps_is_known_ahead(found: dict[str, Any], name: str) -> None:
    totals = [(one["steps"], one["source"]) for one in of(found[name], "total")]
    assert totals == TOTALS[name]
    assert not totals or totals[-1][0] == found[name]["numbers"][0]


def test_a_limit_of_steps_bounds_it(found: dict[str, Any]) -> None:
    assert [(one["steps"], one["source"]) for one in of(found["two steps"], "total")] == [(2, "--steps")]


def test_a_limit_of_steps_comes_out_of_fit(found: dict[str, Any]) -> None:
    run = found["two steps"]
    assert run["raised"] == "StepLimit" and run["numbers"][0] == 2


def test_a_limit_of_recompiles_comes_out_of_fit_after_its_record(found: dict[str, Any]) -> None:
    run = found["one too many"]
    assert run["raised"] == "RecompileLimit" and run["numbers"][2] == 1
    assert [one["cause"] for one in of(run, "compile")] == ["", "input-shape"]


def test_a_limit_of_recompiles_lets_an_evaluation_compile(found: dict[str, Any]) -> None:
    run = found["no recompiles"]
    assert run["raised"] == "" and run["numbers"][2] == 1
    assert [one["cause"] for one in of(run, "compile")] == ["", "mode-switch"]


# -- values, precision, the batch -------------------------------------------------------------------------------------


def values(run: dict[str, Any]) -> list[tuple[str, int]]:
    return [(one["name"], one.get("step", 0)) for one in of(run, "value")]


def test_the_logs_of_keras_epochs_are_values(found: dict[str, Any]) -> None:
    assert values(found["keras_last_batch"]) == [("loss", 3), ("loss", 6)]
    assert sorted(values(found["evaluated"])) == [("loss", 2), ("val_loss", 2)]


def test_what_is_logged_in_a_loop_is_a_number_of_its_step(found: dict[str, Any]) -> None:
    run = found["strategy_steps"]
    assert sorted(values(run)) == [("loss", 1), ("loss", 2), ("rate", 1), ("rate", 2)]
    assert all(isinstance(one["value"], float) for one in of(run, "value"))


def test_a_value_that_is_logged_while_tracing_is_told(found: dict[str, Any]) -> None:
    run = found["logged_in_trace"]
    assert "Return the tensor from the function" in texts(run, "log-in-trace")[0]
    assert values(run) == [("number", 0)]


def test_mixed_bfloat16_as_asked_and_as_compiled(found: dict[str, Any]) -> None:
    (true,) = of(found["mixed"], "precision")
    assert (true["asked"], true["share"], true["agrees"]) == ("bf16", 1.0, True)
    assert true["notes"] == ["Trainable variables of the program: 2 float32."]
    (false,) = of(found["asked"], "precision")
    assert (false["asked"], false["source"], false["share"], false["agrees"]) == ("bf16", "--precision", 0.0, False)
    assert "build the model again" in false["text"]


def test_the_batch_that_keras_trains_with(found: dict[str, Any]) -> None:
    (batch,) = of(found["evaluated"], "batch")
    assert (batch["per_device"], batch["accumulation"], batch["ranks"]) == (16, 1, 1)


def test_an_evaluation_with_another_batch_size_is_told_at_its_first_compile(found: dict[str, Any]) -> None:
    training, evaluation = of(found["evaluated_after"], "compile")
    assert training["text"] == "" and not evaluation["recompile"]
    assert evaluation["text"] == "Evaluation uses batches of 10 (training: 16), so it compiles its own graph."


# -- the observer itself ----------------------------------------------------------------------------------------------


def test_what_fails_in_the_observer_ends_the_observing_and_not_the_training(found: dict[str, Any]) -> None:
    run = found["broken"]
    assert run["numbers"] == [6, None, None]
    (text,) = texts(run, "observing-stopped")
    assert text.startswith("Monitoring stopped (ZeroDivisionError: a reason")


def test_methods_and_environment_are_put_back(found: dict[str, Any]) -> None:
    assert found["put back"] is True
