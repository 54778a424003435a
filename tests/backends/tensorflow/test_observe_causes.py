"""Causes from records of compiles, without a program; and the dump folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.compiles import CompileCause, CompileReport
from tpu_magics.backends.tensorflow.observe import causes
from tpu_magics.backends.tensorflow.observe.dumps import Dumps
from tpu_magics.backends.tensorflow.observe.evidence import FunctionCompile, FunctionFacts
from tpu_magics.runs.events import Input, Site

SITE = Site(0, "In [1]", 4)


def graph(*ops: str) -> hlo.Graph:
    lines = [f"  %op.{n} = f32[2]{{0}} {op}(%arg0.1)" for n, op in enumerate(ops)]
    text = ["HloModule a_inference_step_1__.1", "", "ENTRY %a_inference_step_1__.1 (arg0.1: f32[2]) -> f32[2] {"]
    return hlo.parse("\n".join([*text, "  %arg0.1 = f32[2]{0} parameter(0)", *lines, "}", ""]))


def compiled(
    inputs: dict[str, tuple[tuple[int, ...], str]],
    ops: tuple[str, ...] = ("negate",),
    short: frozenset[tuple[int, int]] = frozenset(),
    **facts: Any,
) -> FunctionCompile:
    given = tuple(Input(name, shape, dtype) for name, (shape, dtype) in inputs.items())
    report = CompileReport(graph=graph(*ops) if ops else None)
    known = FunctionFacts(**{"function": "step", **facts})
    return FunctionCompile(SITE, 0, 0, report, inputs=given, short=short, facts=known)


def why(new: FunctionCompile, old: FunctionCompile) -> CompileCause:
    return causes.explain(new, old)


BATCH = {"x": ((8, 4), "float32")}


def test_without_a_difference_the_cause_is_not_certain() -> None:
    assert why(compiled(BATCH), compiled(BATCH)).cause == "unknown"
    nothing = why(compiled(BATCH, ()), compiled(BATCH, ()))
    assert nothing.cause == "unknown" and "could not be compared" in nothing.text


def test_other_operations_of_the_same_function_are_new_code() -> None:
    verdict = why(compiled(BATCH, ("negate", "tanh")), compiled(BATCH))
    assert verdict.cause == "new-code" and verdict.difference == ("1 operation more: tanh 1",)


def test_a_python_text_or_another_argument_is_new_code() -> None:
    verdict = why(compiled(BATCH, literals={"how": "sum"}), compiled(BATCH, literals={"how": "mean"}))
    assert verdict.cause == "new-code" and "how is now 'sum', before 'mean'" in verdict.text
    more = why(compiled({**BATCH, "mask": ((8,), "bool")}), compiled(BATCH))
    assert more.cause == "new-code" and more.text.endswith("different arguments: mask.")


def test_a_smaller_batch_is_the_last_one_only_where_the_data_says_so() -> None:
    smaller = {"x": ((3, 4), "float32")}
    assert why(compiled(smaller), compiled(BATCH)).cause == "input-shape"
    verdict = why(compiled(smaller, short=frozenset({(8, 3)})), compiled(BATCH))
    assert verdict.cause == "last-batch" and "3 samples instead of 8" in verdict.text
    other = why(compiled(smaller, short=frozenset({(16, 3)})), compiled(BATCH))
    assert other.cause == "input-shape" and "Use the same batch size" in other.fix


def test_a_number_that_is_nan_twice_has_not_changed() -> None:
    nan = float("nan")
    assert why(compiled(BATCH, literals={"rate": nan}), compiled(BATCH, literals={"rate": nan})).cause == "unknown"
    assert why(compiled(BATCH, literals={"n": 1}), compiled(BATCH, literals={"n": 1.0})).cause == "python-number"


def test_near_is_the_same_function_in_the_same_mode() -> None:
    new = compiled(BATCH, mode="evaluation")
    far, near = compiled(BATCH, mode="training"), compiled({"x": ((2, 4), "float32")}, ("tanh",), mode="evaluation")
    assert causes.distance(new, near) < causes.distance(new, far)


def test_a_dump_without_a_graph_is_no_compile_and_one_that_is_cut_has_no_memory(tmp_path: Path) -> None:
    dumps = Dumps(tmp_path, lambda name: name == "__inference_a_1__b_12")
    (tmp_path / "module_0003.a_inference_other_1__.1.debug_options").write_text("")
    (tmp_path / "module_0004.a_inference_a_1__b_12__.6.before_optimizations.txt").write_text("HloModule x\n")
    (tmp_path / "module_0004.a_inference_a_1__b_12__.6.cpu-buffer-assignment.txt").write_text("BufferAss")
    (one,) = dumps.read()
    assert one.function == "__inference_a_1__b_12" and one.report.memory is None and one.is_of("__inference_a_1__b_12")
    assert list(tmp_path.iterdir()) == [] and not dumps.changed()
