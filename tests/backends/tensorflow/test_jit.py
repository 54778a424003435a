"""The jit policy (with jit_scenarios.py). XLA's dumps count what was compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("jit_scenarios.py")
ON = "jit_compile=True for this run"
LEFT = (
    "unchanged: compile() got jit_compile=False. XLA does not compile this step here, so an op that XLA cannot "
    "compile would first fail on a TPU"
)
LEFT_OFF = (
    "left_off: unchanged: it has jit_compile=False. XLA does not compile it here, so an op that XLA cannot compile "
    "would first fail on a TPU"
)
UNHEARD = (
    'it was off: Keras\' "auto" turns it off without a GPU, and the value given to compile() is unknown; --jit keep '
    "leaves it off"
)
OFF = 'it was off: Keras\' "auto" turns it off without a GPU'


def said(run: dict[str, Any]) -> list[str]:
    """What was told, without the place, which is a line of the cell."""
    places = [re.match(r"In \[3\]:\d+ ", line) for line in run["told"]]
    assert all(places), run["told"]
    return [line[len(place[0]) :] for line, place in zip(run["told"], places, strict=True) if place]


# -- Keras ---------------------------------------------------------------------------------------------------------


def test_a_model_is_compiled_by_xla_and_the_line_of_fit_is_told(found: dict[str, Any]) -> None:
    first = found["keras_model"]["first"]
    assert first["compiles"] == 1
    assert said(first) == [f"model 'digits': {ON} ({OFF})"]


def test_it_learns_the_same(found: dict[str, Any]) -> None:
    assert found["keras_model"]["same loss"]
    assert found["same_numbers"]


def test_a_model_is_put_back_and_the_next_run_compiles_nothing_anew(found: dict[str, Any]) -> None:
    seen = found["keras_model"]
    assert seen["after"] == [True, False]  # no training function, jit_compile off
    assert seen["plain"][0] == seen["plain"][2]
    for later in ("again", "after plain"):
        assert (seen[later]["compiles"], said(seen[later])) == (0, said(seen["first"]))


def test_keep_leaves_all_alone(found: dict[str, Any]) -> None:
    assert (found["keras_model"]["keep"]["told"], found["keras_model"]["keep"]["compiles"]) == ([], 0)


def test_a_model_that_was_trained_before_gets_its_own_function_back(found: dict[str, Any]) -> None:
    seen = found["trained_before"]
    assert (seen["run"]["compiles"], seen["put back"]) == (1, True)


def test_an_explicit_jit_compile_of_false_is_kept_until_the_model_is_compiled_anew(found: dict[str, Any]) -> None:
    seen = found["compiled_in_the_run"]
    assert (seen["compiles"], seen["value"]) == (1, [False, True])
    assert said(seen)[0] == f"model 'inside': {LEFT}" and said(seen)[1:] == [f"model 'inside': {ON} ({OFF})"]


@pytest.mark.parametrize(
    ("of", "text", "compiles"),
    [
        ("False", LEFT, 0),
        ("in a subclass", LEFT, 0),
        ("loaded", f"{ON} ({OFF})", 1),  # Keras saves "auto" as False
        ("unheard", f"{ON} ({UNHEARD})", 1),
    ],
)
def test_who_said_false_is_known_where_compile_was_heard(
    found: dict[str, Any], of: str, text: str, compiles: int
) -> None:
    seen = found["told_false"][of]
    assert (said(seen), seen["compiles"]) == ([f"model 'digits': {text}"], compiles)


def test_a_model_that_was_compiled_anew_is_not_trained_with_old_functions(found: dict[str, Any]) -> None:
    assert found["compiled_anew"]["compiles"] == 1


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        ("eager_model", "it has run_eagerly=True"),
        ("mirrored", "its strategy has several replicas, and XLA cannot compile collectives on a CPU"),
    ],
)
def test_what_xla_cannot_have_is_left_and_told(found: dict[str, Any], scenario: str, why: str) -> None:
    assert said(found[scenario]) == [f"model 'digits': jit_compile stays off: {why}"]
    assert found[scenario]["compiles"] == 0


def test_a_model_that_does_not_support_it(found: dict[str, Any]) -> None:
    seen = found["unsupported"]
    assert said(seen["run"]) == [
        "model 'digits': jit_compile stays off: Keras reports that the model does not support it"
    ]
    assert (seen["run"]["compiles"], seen["after"]) == (0, False)


def test_several_steps_in_one_call(found: dict[str, Any]) -> None:
    seen = found["several_steps_in_one_call"]
    assert (said(seen), seen["compiles"]) == ([f"model 'digits': {ON} ({OFF})"], 1)


def test_an_interrupted_run_puts_all_back(found: dict[str, Any]) -> None:
    assert found["failing"] == [True, False]


def test_on_a_tpu_it_is_taken_off_and_put_back(found: dict[str, Any]) -> None:
    seen = found["on_a_tpu"]
    for run in (seen["first"], seen["again"]):
        assert (run["compiles"], run["value"]) == (0, [False, None])
        assert said(run) == [
            "model 'digits': jit_compile=False for this run (it was on)",
            "explicit: jit_compile removed for this run: on a TPU the strategy compiles what it runs",
        ]
    assert seen["after"] == [True, True]


# -- tf.functions --------------------------------------------------------------------------------------------------


def test_a_step_function_is_traced_and_compiled_once_for_all_runs(found: dict[str, Any]) -> None:
    seen = found["step_function"]
    assert said(seen["first"]) == [f"train_step: {ON}"]
    assert [seen[run]["compiles"] for run in ("first", "second", "third")] == [1, 0, 0]
    assert seen["traced"] == ["train_step"] * 2  # once for the runs, once for the plain call between them


def test_between_runs_it_is_as_it_was(found: dict[str, Any]) -> None:
    assert (found["step_function"]["plain compiles"], found["step_function"]["after"]) == (0, True)


def test_a_function_that_was_traced_before_is_compiled_for_the_run(found: dict[str, Any]) -> None:
    seen = found["traced_before"]
    assert (said(seen), seen["compiles"]) == ([f"train_step: {ON}"], 1)
    assert seen["its trace is back"]


def test_a_function_that_trains_nothing_is_left_alone(found: dict[str, Any]) -> None:
    seen = found["no_training"]
    assert (seen["told"], seen["compiles"], seen["again"]["compiles"]) == ([], 0, 0)
    assert seen["traced"] == ["evaluate", "evaluate"]  # looked at, and as it was; not anew in the next run


def test_an_iterator_is_not_for_xla_and_what_is_called_is_compiled(found: dict[str, Any]) -> None:
    for seen in (found["pipelines"]["iterator"], found["pipelines_traced_before"]):
        left, put_on = said(seen)
        assert left.startswith("epoch: jit_compile stays off: it takes its batches from an iterator or a dataset")
        assert (put_on, seen["compiles"]) == (f"train_step: {ON}", 1)


def test_what_was_compiled_for_tensors_is_not_given_an_iterator(found: dict[str, Any]) -> None:
    tensors, iterator, again = found["batches_and_iterators"]
    assert (said(tensors), tensors["compiles"], tensors["value"]) == ([f"add: {ON}"], 1, 2.0)
    assert (said(again), again["compiles"], again["value"]) == ([f"add: {ON}"], 1, 6.0)
    assert said(iterator)[0].startswith("add: jit_compile stays off: it takes its batches from an iterator")
    assert (iterator["compiles"], iterator["value"]) == (0, 4.0)


def test_a_loop_over_a_dataset_is_not_for_xla(found: dict[str, Any]) -> None:
    seen = found["pipelines"]["dataset"]
    left, put_on = said(seen)
    assert left.startswith("over_dataset: jit_compile stays off: it reads from an input pipeline")
    assert (put_on, seen["compiles"]) == (f"train_step: {ON}", 1)


def test_a_whole_training_is_no_program_which_an_interrupt_could_not_end(found: dict[str, Any]) -> None:
    seen = found["loops"]
    left, put_on = said(seen["long"])
    assert left.startswith("repeated: jit_compile stays off: it trains in a loop, which XLA would compile to one ")
    assert (put_on, seen["long"]["compiles"]) == (f"train_step: {ON}", 1)
    assert (said(seen["short"]), seen["short"]["compiles"]) == ([f"repeated: {ON}"], 1)
    assert seen["same"] and said(seen["no training"]) == []


def test_an_explicit_jit_compile_is_kept(found: dict[str, Any]) -> None:
    assert said(found["explicit"]) == [LEFT_OFF]
    assert found["explicit"]["compiles"] == 1


def test_methods_that_make_their_variables_in_the_first_call(found: dict[str, Any]) -> None:
    seen = found["methods"]
    assert (said(seen), seen["compiles"]) == ([f"add: {ON}"], 1)
    assert (seen["value"], seen["plain afterwards"]) == ([3.0, 5.0], 7.0)
    for name, first, then in (("a dataset", 3.0, 5.0), ("its own dataset", 4.0, 7.0)):
        assert (seen[name]["value"], seen[name]["plain"], seen[name]["compiles"]) == (first, then, 0)


def test_strategy_run_over_a_distributed_dataset(found: dict[str, Any]) -> None:
    seen = found["strategy_run"]
    assert (said(seen), seen["compiles"]) == ([f"distributed: {ON}"], 1)


def test_what_the_guides_form_gives_to_strategy_run_is_compiled(found: dict[str, Any]) -> None:
    seen = found["guides_form"]
    for run, name, inner in (("first", "train_step", "one"), ("loop", "many", "update")):
        left, put_on = said(seen[run])
        assert left.startswith(f"{name}: jit_compile stays off: it takes its batches from an iterator or a dataset")
        assert (put_on, seen[run]["compiles"]) == (f"{inner}: {ON}: on a TPU strategy.run compiles it", 1)
    assert (seen["plain afterwards"][1], seen["again"]["compiles"]) == (0, 0)
    assert (said(seen["explicit"]), seen["explicit"]["compiles"]) == (
        [LEFT_OFF],
        0,
    )
    assert seen["three sites"]["compiles"] == 1, "one for the function, as on a TPU, however often it is given"
    assert seen["steps"] == 2 + 1 + 1 + 3 + 3 + 1 + 1


def test_strategy_run_without_a_tf_function_is_what_a_tpu_refuses(found: dict[str, Any]) -> None:
    [told] = said(found["guides_form"]["eager"])
    assert told.startswith("one: strategy.run runs it op by op here, which fails on a TPU: make it a tf.function")


def test_several_replicas_are_left_alone(found: dict[str, Any]) -> None:
    seen = found["replicas"]
    assert said(seen) == [
        "both: jit_compile stays off: it runs on several replicas, and XLA cannot compile collectives on a CPU"
    ]
    assert (seen["compiles"], seen["total"]) == (0, 2.0)


def test_what_xla_refuses_shows(found: dict[str, Any]) -> None:
    named, total, put_back = found["refused_by_xla"]
    assert named and put_back
    assert total == 1.0  # of the plain call afterwards


def test_an_array_that_xla_would_leave_empty_is_told(found: dict[str, Any]) -> None:
    seen = found["growing_array"]
    assert seen["lengths"] == [3, 0]
    [told] = said(seen)
    assert told.startswith(f"step: {ON}; it writes to a TensorArray with dynamic_size=True, which cannot grow")


def test_a_first_trace_that_fails(found: dict[str, Any]) -> None:
    seen = found["broken_trace"]
    assert (said(seen), seen["compiles"], seen["value"]) == ([f"step: {ON}"], 1, 1.0)


# -- what is not to be seen of it ------------------------------------------------------------------------------------


def test_no_warning_of_retracing(found: dict[str, Any]) -> None:
    assert found["retracing_warnings"] == []


def test_no_frame_of_ours_on_the_stack_of_what_is_traced(found: dict[str, Any]) -> None:
    assert found["stack_is_tensorflows"] == []


def test_the_classes_are_as_they_were(found: dict[str, Any]) -> None:
    assert found["put_back_whole"]["same"]


def test_with_other_versions_all_is_left_alone_with_a_line(found: dict[str, Any]) -> None:
    told = found["put_back_whole"]["unknown"]["told"]
    assert [line.partition(":")[0] for line in told] == ["models", "tf.functions", "strategy.run"]
    assert all("differs from" in line for line in told)
    assert found["put_back_whole"]["unknown"]["compiles"] == 0
