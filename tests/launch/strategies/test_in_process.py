"""TensorFlow in the notebook's own process: in_process_runs.py trains in another process, once for all tests here."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import framework, preconditions
from tpu_magics.launch.plan import Options

pytestmark = pytest.mark.process
LONG = pytest.mark.long

ROOT = Path(__file__).parents[3]
RUNS = Path(__file__).with_name("in_process_runs.py")
ALL = (
    *("success", "failure", "equal_draws", "custom_loop", "keep_partial", "interrupts", "limits", "refusals"),
    *(
        "interrupted_context",
        "swallowed_interrupts",
        "forms",
        "stack_of_traced_code",
        "scopes",
        "full_disk",
        "unknown_size",
    ),
)
WHOLE = ["rank-0.jsonl", "rank-0.log", "run.json", "supervisor.jsonl"]  # nothing else stays in a run folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local")
    return overlay.report(RUNS, *ALL, cwd=folder, TPU_MAGICS_RUNS=str(folder / "runs"))


def test_data_of_unknown_size_end_each_epoch(found: dict[str, Any]) -> None:
    assert found["unknown_size"] == {"epochs": 3, "steps": 9, "status": "done"}


# -- a run that ends well ---------------------------------------------------------------------------------------------


def test_a_good_run_trains_the_notebooks_own_model_and_records_itself(found: dict[str, Any]) -> None:
    one = found["success"]
    assert one["changed"] and one["value"] and one["status"] == "done"
    assert one["models"] == one["home"] == ["model"]
    assert one["info"]["plan"]["framework"] == "tensorflow" and one["info"]["plan"]["device"] == "CPU"
    assert one["info"]["failure"] is None
    assert one["info"]["workers"][0]["exit"] == 0 and one["info"]["workers"][0]["peak_rss"] > 10_000_000
    assert {"start", "phase", "steps", "compile", "memory", "end"} <= set(one["events"])


def test_steps_and_compiles_are_counted(found: dict[str, Any]) -> None:
    one = found["success"]
    assert one["steps"] == 4 and one["compiles"][0] >= 1


def test_two_runs_in_a_row(found: dict[str, Any]) -> None:
    assert found["success"]["changed again"]


def test_the_log_holds_what_the_person_printed_and_nothing_of_ours(found: dict[str, Any]) -> None:
    assert found["success"]["log"] == "the person's line\n"


def test_nothing_is_left_of_a_run(found: dict[str, Any]) -> None:
    one = found["success"]
    assert one["files"] == WHOLE
    assert one["threads"] == [] and one["handler"] and one["jit"] is False


def test_what_the_jit_policy_changed_is_said(found: dict[str, Any]) -> None:
    assert any("jit_compile=True" in line for line in found["success"]["lines"])


# -- a run that fails -------------------------------------------------------------------------------------------------


def test_the_persons_own_error_arrives_as_it_is(found: dict[str, Any]) -> None:
    one = found["failure"]
    assert (one["type"], one["text"], one["status"]) == ("ValueError", "the person's own", "failed")
    assert one["log"].startswith("trained\nTraceback") and one["log"].endswith("ValueError: the person's own\n")
    assert "The notebook's models are unchanged." in one["lines"]
    assert one["exit"] is None  # the notebook's process goes on


def test_weights_optimizers_and_metrics_are_as_before_to_the_byte(found: dict[str, Any]) -> None:
    assert found["failure"]["same"] == [True, True]


def test_what_the_failed_run_has_made_is_forgotten(found: dict[str, Any]) -> None:
    one = found["failure"]
    assert one["optimizer"] == [False, 2]  # its iteration and learning rate; the slots are gone
    assert one["unbuilt"] == [False, 0, False]


def test_random_states_are_as_before(found: dict[str, Any]) -> None:
    assert found["failure"]["random"] == [True, True]
    without, after_one_that_failed = found["equal_draws"]["losses"]
    assert without == after_one_that_failed


def test_the_next_run_trains(found: dict[str, Any]) -> None:
    one = found["failure"]
    assert one["after"]["status"] == "done" and one["trained"]


def test_no_folder_is_left_half(found: dict[str, Any]) -> None:
    assert found["failure"]["files"] == found["failure"]["after"]["files"] == WHOLE


def test_a_tf_function_whose_first_call_failed_is_as_new(found: dict[str, Any]) -> None:
    one = found["custom_loop"]
    assert one["left"] == [False, 2]
    assert one["iterations"] == 5 and one["losses"] == sorted(one["losses"], reverse=True)


def test_keep_partial_keeps_and_says_so(found: dict[str, Any]) -> None:
    one = found["keep_partial"]
    assert one["changed"] and one["type"] == "ValueError" and one["files"] == WHOLE
    assert any("--keep-partial" in line for line in one["lines"])


def test_a_disk_that_is_full_refuses_the_run_before_anything_is_trained(found: dict[str, Any]) -> None:
    one = found["full_disk"]
    assert one["type"] == "TpuMagicsError" and one["status"] == "refused" and one["same"]
    assert "to save the current weights: they take" in one["text"] and "TPU_MAGICS_RUNS" in one["text"]


# -- stopped ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["fit", "loop", "function"])
def test_an_interrupt_ends_the_run_soon_and_puts_all_back(found: dict[str, Any], where: str) -> None:
    one = found["interrupts"][where]
    assert (one["type"], one["interrupt"], one["status"]) == ("TrainingInterrupted", True, "interrupted")
    assert one["same"] and one["counter"] == 0 and one["files"] == WHOLE
    assert one["seconds"] < 2.0


def test_after_an_interrupt_the_next_run_trains(found: dict[str, Any]) -> None:
    assert found["interrupts"]["after"]["status"] == "done"


def test_an_interrupt_between_two_steps_of_tensorflow_leaves_it_able_to_train(found: dict[str, Any]) -> None:
    one = found["interrupted_context"]
    assert one["type"] == "TrainingInterrupted" and one["after"]["status"] == "done", one


def test_an_interrupt_that_other_code_swallowed_within_fit_is_sent_again(found: dict[str, Any]) -> None:
    one = found["swallowed_interrupts"]
    assert one["times"] == 1 and one["within"]["status"] == "interrupted", one
    assert one["around"]["status"] == "done", one  # the person's own code caught it, and went on


def test_the_time_limit_ends_the_run(found: dict[str, Any]) -> None:
    one = found["limits"]["timeout"]
    assert (one["type"], one["status"]) == ("TrainingFailed", "timeout") and found["limits"]["same timeout"]
    assert "stopped after 1 s (--timeout)" in one["text"] and "in_process_runs.py" in one["text"]


def test_the_limit_of_steps_ends_the_run_well_with_the_models_unchanged(found: dict[str, Any]) -> None:
    one = found["limits"]["steps"]
    assert "type" not in one and one["status"] == "stopped" and found["limits"]["same steps"]
    assert found["limits"]["counted"] == 3


def test_the_limit_of_recompiles_fails_the_run_with_the_causes(found: dict[str, Any]) -> None:
    one = found["limits"]["recompiles"]
    assert (one["type"], one["status"]) == ("TrainingFailed", "failed")
    assert "--max-recompiles allows 1" in one["text"] and "Recompiles:" in one["text"]


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-n", "--hoist", "--background", "--spmd", "--precision", "--jit"])
def test_what_only_forked_workers_can_have_is_refused_with_the_reason(found: dict[str, Any], option: str) -> None:
    one = found["refusals"][option]
    assert one["type"] == "TpuMagicsError" and one["text"].startswith(option)
    assert "Why: " in one["text"] and "What to do: " in one["text"] and one["status"] == ""


def test_a_run_within_a_run_is_refused(found: dict[str, Any]) -> None:
    assert "Training was started inside the run" in found["refusals"]["nested"]["text"]


def test_an_import_of_torch_xla_says_what_it_would_do(found: dict[str, Any]) -> None:
    assert "aborts the kernel" in found["refusals"]["torch"]


def test_the_three_forms_of_a_cell(found: dict[str, Any]) -> None:
    one = found["forms"]
    assert one["third"] == one["first"] == "" and one["value"] == 0.5
    assert {"model", "history", "tf"} <= set(one["names"]) and one["models"] == ["model"]
    assert one["second"].startswith("notebook_launcher(...) cannot train with TensorFlow.")


def test_a_cell_that_fails_leaves_the_names_of_models_as_they_were(found: dict[str, Any]) -> None:
    assert found["forms"]["broken"] == "ValueError: late" and found["forms"]["model"]


@pytest.fixture(scope="module", params=["mirrored", *(pytest.param(m, marks=LONG) for m in ("one_device", "current"))])
def own_strategy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("strategy")
    return list(overlay.report(RUNS, request.param, cwd=folder, TPU_MAGICS_RUNS=str(folder / "runs"))[request.param])


def test_a_cell_can_make_a_strategy_of_one_replica_and_train_under_it(own_strategy: list[Any]) -> None:
    here, later, trained, failed, kept = own_strategy
    assert here == later == "" and trained
    assert failed == "ValueError: late" and kept


def test_no_frame_of_ours_in_the_error_of_traced_code(found: dict[str, Any]) -> None:
    text = found["stack_of_traced_code"]["text"]
    assert "in user code" in text and "in inner" in text and "tpu_magics" not in text.replace(str(ROOT), "")


def test_a_model_from_outside_the_scope_is_refused_by_name(found: dict[str, Any]) -> None:
    [[what, why, todo, refuses]] = found["scopes"]["outside"]
    assert what == "The model `model` was built outside strategy.scope()." and refuses
    assert "MirroredStrategy" in why and "with strategy.scope():" in todo
    assert found["scopes"]["inside"] == 0


# -- which framework --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "models", "packages", "chosen"),
    [
        ("tensorflow", ["torch"], ["torch"], "tensorflow"),
        ("torch", [], ["tensorflow"], "torch"),
        ("auto", ["tensorflow"], ["torch"], "tensorflow"),
        ("auto", ["torch"], ["tensorflow"], "torch"),
        ("auto", [], ["keras", "numpy"], "tensorflow"),
        ("auto", [], ["accelerate", "torch"], "torch"),
    ],
)
def test_the_framework_is_chosen(asked: str, models: list[str], packages: list[str], chosen: str) -> None:
    assert framework.choose_framework(asked, models, packages) == chosen


def test_where_nothing_tells_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework, "imported", lambda: {"torch", "tensorflow"})
    with pytest.raises(TpuMagicsError, match="It is unclear whether") as caught:
        framework.choose_framework("auto")
    assert "--framework tensorflow" in caught.value.todo
    monkeypatch.setattr(framework, "imported", lambda: {"tensorflow"})
    assert framework.choose_framework("auto") == "tensorflow"


def test_packages_are_read_from_code() -> None:
    tree = ast.parse("import numpy as np\nfrom keras.layers import Dense\ndef f():\n    import tensorflow.data\n")
    assert framework.packages_of_tree(tree) == {"numpy", "keras", "tensorflow"}

    def function() -> object:
        import tensorflow as tf

        return tf

    assert "tensorflow" in framework.packages_of_function(function)
    assert "json" in framework.packages_of_function(json.dumps)


@pytest.mark.parametrize("options", [Options(jit="keep")])
def test_torch_has_no_options_of_tensorflow(options: Options) -> None:
    with pytest.raises(TpuMagicsError, match="TensorFlow cells"):
        preconditions.refuse_in_process_options(options)
