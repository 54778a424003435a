"""TensorFlow in the notebook's own process: in_process_runs.py trains in another process, once for all tests here."""

from __future__ import annotations

import ast
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tpu_magics.backends import frameworks
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import preconditions, used_packages
from tpu_magics.launch.options import Options
from tpu_magics.launch.strategies import in_process

pytestmark = pytest.mark.process
LONG = pytest.mark.long

ROOT = Path(__file__).parents[3]
RUNS = Path(__file__).with_name("in_process_runs.py")
RUN_NAMES = (
    *(
        "success",
        "failure",
        "equal_draws",
        "custom_loop",
        "keep_partial",
        "not_finite",
        "interrupts",
        "limits",
        "refusals",
    ),
    *("interrupted_context", "swallowed_interrupts", "forms", "stack_of_traced_code", "scopes", "full_disk"),
    "unknown_size",
)
WHOLE = ["rank-0.jsonl", "rank-0.log", "run.json", "supervisor.jsonl"]  # nothing else stays in a run folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local")
    return overlay.report(RUNS, *RUN_NAMES, cwd=folder, TPU_MAGICS_RUNS=str(folder / "runs"))


def test_a_call_that_cannot_be_left_is_named() -> None:
    said = in_process.stuck_text(sys._getframe(), {__file__: "In [3]"})  # this line
    assert said.startswith("The run cannot stop yet: TensorFlow is within one call at `said = in_process.stuck_text(")
    assert "(In [3], line " in said and "only a restart of the kernel ends it now" in said


def test_an_input_that_waits_is_named() -> None:
    """TensorFlow calls Python's generators in a thread of its own."""
    called, ends = threading.Event(), threading.Event()
    space: dict[str, Any] = {}
    path = "/usr/lib/python3/site-packages/tensorflow/python/ops/script_ops.py"
    exec(compile("def call(function): function()", path, "exec"), space)

    def generates() -> None:
        called.set()
        ends.wait()

    thread = threading.Thread(target=space["call"], args=(generates,), daemon=True)
    thread.start()
    called.wait()
    try:
        said = in_process.stuck_text(sys._getframe(), {__file__: "In [3]"})
    finally:
        ends.set()
        thread.join()
    assert "which waits for the input at `" in said and "in generates)" in said, said
    assert "jit_compile" not in said and "a time limit" in said


# -- what each run tells ----------------------------------------------------------------------------------------------

PUT_BACK = {"type": "TrainingInterrupted", "interrupt": True, "status": "interrupted", "same": True, "counter": 0}
EXPECTED: dict[str, dict[str, Any]] = {
    "success": {
        "changed": True,
        "changed again": True,
        "value": True,
        "models": ["model"],
        "home": ["model"],
        "status": "done",
        "steps": 4,
        "log": "the person's line\n",
        "files": WHOLE,
        "threads": [],
        "handler": True,
        "jit": False,
    },
    "unknown_size": {"epochs": 3, "steps": 9, "status": "done"},
    "failure": {
        "type": "ValueError",
        "text": "the person's own",
        "status": "failed",
        "files": WHOLE,
        "exit": None,  # the notebook's process goes on
        "same": [True, True],  # weights, optimizers and metrics, to the byte
        "optimizer": [False, 2],  # its iteration and learning rate; the slots are gone
        "unbuilt": [False, 0, False],
        "random": [True, True],
        "trained": True,  # by the next run
    },
    "failure after": {"status": "done", "files": WHOLE},
    "keep_partial": {
        "changed": True,
        "type": "ValueError",
        "files": WHOLE,
        "kept": "weights and state of step 4",
    },
    "not_finite": {"status": "done", "warned": [1, True]},
    "full_disk": {"type": "TpuMagicsError", "status": "refused", "same": True},
    **{f"interrupts {where}": {**PUT_BACK, "files": WHOLE} for where in ("fit", "loop", "function", "auto")},
    "interrupts after": {"status": "done"},
    "interrupted_context": {"type": "TrainingInterrupted"},
    "interrupted_context after": {"status": "done"},
    "swallowed_interrupts": {"times": 1},
    "swallowed_interrupts within": {"status": "interrupted"},
    "swallowed_interrupts around": {"status": "done"},  # the person's own code caught it, and went on
    "limits": {"same timeout": True, "same steps": True, "counted": 3},
    "limits timeout": {"type": "TrainingFailed", "status": "timeout"},
    "limits steps": {"type": None, "status": "stopped"},
    "limits recompiles": {"type": "TrainingFailed", "status": "failed"},
}


def part_of(found: dict[str, Any], path: str) -> Any:
    name, _, part = path.partition(" ")
    return found[name][part] if part else found[name]


@pytest.mark.parametrize("path", EXPECTED)
def test_what_each_run_tells(found: dict[str, Any], path: str) -> None:
    one = part_of(found, path)
    assert {key: one.get(key) for key in EXPECTED[path]} == EXPECTED[path], one


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("success lines", ["jit_compile=True"]),
        ("keep_partial lines", ["--keep-partial"]),
        ("not_finite lines", ["of `model` contains NaN", "The logged `loss` was first not finite"]),
        ("full_disk text", ["to save the current weights: they take", "TPU_MAGICS_RUNS"]),
        ("refusals torch", ["aborts the kernel"]),
    ],
)
def test_what_is_said(found: dict[str, Any], path: str, words: list[str]) -> None:
    said = part_of(found, path)
    text = said if isinstance(said, str) else "\n".join(said)
    assert all(word in text for word in words), text


def test_a_good_run_records_itself(found: dict[str, Any]) -> None:
    one = found["success"]
    assert one["compiles"][0] >= 1
    assert one["info"]["plan"]["framework"] == "tensorflow" and one["info"]["plan"]["device"] == "CPU"
    assert one["info"]["failure"] is None
    assert one["info"]["workers"][0]["exit"] == 0 and one["info"]["workers"][0]["peak_rss"] > 10_000_000
    assert {"start", "phase", "steps", "compile", "memory", "end"} <= set(one["events"])


def test_a_failed_run_logs_its_error_and_the_next_draws_as_without_it(found: dict[str, Any]) -> None:
    assert "The notebook's models are unchanged." in found["failure"]["lines"]
    log = found["failure"]["log"]
    assert log.startswith("trained\nTraceback") and log.endswith("ValueError: the person's own\n")
    without, after_one_that_failed = found["equal_draws"]["losses"]
    assert without == after_one_that_failed


def test_a_tf_function_whose_first_call_failed_is_as_new(found: dict[str, Any]) -> None:
    one = found["custom_loop"]
    assert one["left"] == [False, 2]
    assert one["iterations"] == 5 and one["losses"] == sorted(one["losses"], reverse=True)


def test_an_interrupt_ends_the_run_soon(found: dict[str, Any]) -> None:
    assert all(found["interrupts"][where]["seconds"] < 2.0 for where in ("fit", "loop", "function", "auto"))


def test_limits_say_what_they_were(found: dict[str, Any]) -> None:
    limits = found["limits"]
    assert "stopped after 1 s (--timeout)" in limits["timeout"]["text"]
    assert "in_process_runs.py" in limits["timeout"]["text"]
    assert "--max-recompiles allows 1" in limits["recompiles"]["text"] and "Recompiles:" in limits["recompiles"]["text"]
    assert "Training was started inside the run" in found["refusals"]["nested"]["text"]


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-n", "--hoist", "--background", "--spmd", "--precision", "--jit"])
def test_what_only_forked_workers_can_have_is_refused_with_the_reason(found: dict[str, Any], option: str) -> None:
    one = found["refusals"][option]
    assert one["type"] == "TpuMagicsError" and one["text"].startswith(option)
    assert "Why: " in one["text"] and "What to do: " in one["text"] and one["status"] == ""


def test_the_three_forms_of_a_cell(found: dict[str, Any]) -> None:
    one = found["forms"]
    assert one["third"] == one["first"] == "" and one["value"] == 0.5
    assert {"model", "history", "tf"} <= set(one["names"]) and one["models"] == ["model"]
    assert one["second"].startswith("notebook_launcher(...) cannot train with TensorFlow.")
    assert one["broken"] == "ValueError: late" and one["model"]  # a cell that fails leaves the names of models alone


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
    assert frameworks.choose_framework(asked, models, packages) == chosen


def test_where_nothing_tells_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "imported", lambda: {"torch", "tensorflow"})
    with pytest.raises(TpuMagicsError, match="It is unclear whether") as caught:
        frameworks.choose_framework("auto")
    assert "--framework tensorflow" in caught.value.todo
    monkeypatch.setattr(frameworks, "imported", lambda: {"tensorflow"})
    assert frameworks.choose_framework("auto") == "tensorflow"


def test_packages_are_read_from_code() -> None:
    tree = ast.parse("import numpy as np\nfrom keras.layers import Dense\ndef f():\n    import tensorflow.data\n")
    assert used_packages.packages_of_tree(tree) == {"numpy", "keras", "tensorflow"}

    def function() -> object:
        import tensorflow as tf

        return tf

    assert "tensorflow" in used_packages.packages_of_function(function)
    assert "json" in used_packages.packages_of_function(json.dumps)


@pytest.mark.parametrize("options", [Options(jit="keep")])
def test_torch_has_no_options_of_tensorflow(options: Options) -> None:
    with pytest.raises(TpuMagicsError, match="TensorFlow cells"):
        preconditions.refuse_in_process_options(options)
