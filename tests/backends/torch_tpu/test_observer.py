"""What a TorchTPU run tells of its compiles, steps and reads: in forked workers, on XLA:CPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_magics
from tests.backends.torch_tpu import recompiles
from tests.launch.launching import failed, of, run
from tpu_magics.runs.events import Compile, Precision, Warned

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def compiles(function: Any, **options: Any) -> list[Compile]:
    return [one for one in run(function, **options).run.events("compile") if isinstance(one, Compile)]


def line_of(function: Any, comment: str) -> int:
    lines = Path(function.__code__.co_filename).read_text().splitlines()
    begin = function.__code__.co_firstlineno
    return next(number for number, line in enumerate(lines, 1) if number > begin and line.endswith(f"# {comment}"))


@pytest.mark.parametrize("name", recompiles.EXPECTED)
def test_recompiles_have_their_causes(name: str) -> None:
    function = getattr(recompiles, name)
    causes, words = recompiles.EXPECTED[name]
    found = [one for one in compiles(function) if one.trigger == "call"]
    again = [one for one in found if one.recompile]
    assert tuple(one.cause for one in again) == causes, [(one.cause, one.text) for one in again]
    assert {one.site.line for one in found} == {line_of(function, "site")}
    assert all(one.fix for one in again)
    if again:
        said = " ".join((again[0].text, *again[0].difference))
        assert [word for word in words if word not in said] == []


def test_a_backward_pass_is_a_compile_of_its_own() -> None:
    """Also where both are on one line: neither is a recompile."""
    found = compiles(recompiles.nothing_recompiles)
    assert [(one.trigger, one.nth, one.site.line) for one in found] == [
        (kind, 0, line_of(recompiles.nothing_recompiles, "site")) for kind in ("call", "backward")
    ]
    assert all(one.seconds and one.seconds > 0 for one in found)


def short_batches() -> None:
    model = torch.nn.Linear(8, 2).to("tpu")
    compiled = torch.compile(model)
    data = torch.utils.data.TensorDataset(torch.randn(20, 8))
    for (x,) in torch.utils.data.DataLoader(data, batch_size=16):
        compiled(x.to("tpu")).sum().backward()


def test_the_backward_pass_of_a_recompile_has_its_cause() -> None:
    again = [one for one in compiles(short_batches) if one.recompile]
    assert [(one.trigger, one.cause) for one in again] == [("call", "last-batch"), ("backward", "last-batch")]
    assert "input 0 now float32[4,8], before float32[16,8]" in again[0].text
    assert "expected 16, actual 4" in again[1].text


def two_functions() -> None:
    one, other = torch.compile(lambda x: x + 1), torch.compile(lambda x: x * 2)
    for _step in range(2):
        one(other(torch.ones(2, 4).to("tpu")))


def test_two_functions_of_one_line_are_no_recompile() -> None:
    assert [one.nth for one in compiles(two_functions)] == [0, 0]


def test_a_graph_break_has_its_line_and_reason() -> None:
    told = [one.text for one in run(recompiles.graph_break).run.events("warning") if isinstance(one, Warned)]
    (text,) = (text for text in told if text.startswith("Graph break"))
    assert "Tensor.item()" in text and "recompiles.py" in text


def two_optimizers() -> None:
    models = [torch.nn.Linear(4, 1).to("tpu") for _ in range(2)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
    for step in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(2, 4).to("tpu")).sum().backward()
            optimizer.step()
        tpu_magics.log(step=step)


def test_a_round_of_optimizers_is_a_step() -> None:
    assert run(two_optimizers).steps == 3


def eager() -> float:
    model = torch.nn.Linear(4, 1).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        loss = model(torch.ones(2, 4).to("tpu")).sum()
        loss.backward()
        optimizer.step()
        tpu_magics.log(loss=loss)
    return float(loss.item())


def test_operations_that_are_compiled_one_by_one_are_counted() -> None:
    result = run(eager)
    (text,) = (one.text for one in result.run.events("warning") if isinstance(one, Warned) and one.code == "eager")
    assert "were compiled one by one" in text and "torch.compile" in text
    assert (result.steps, result.compiles) == (3, 0)
    assert [one.step for one in result.run.events("value")] == [1, 2, 3] or len(result.run.events("value"))


def in_bf16() -> None:
    weight = torch.randn(8, 4).to("tpu")
    torch.compile(lambda x: (x @ weight).sum())(torch.randn(2, 8).to("tpu"))


@pytest.mark.parametrize(("precision", "share"), [("bf16", 1.0), (None, 0.0)])
def test_the_share_of_bf16_is_that_of_the_graph(precision: str | None, share: float) -> None:
    records = run(in_bf16, precision=precision).run.events("precision")
    (found,) = (one for one in records if isinstance(one, Precision))
    assert (found.share, found.ops, found.agrees) == (share, 1, True)


def on_the_cpu() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def test_a_run_that_trained_on_the_host_says_so() -> None:
    told = [one.text for one in run(on_the_cpu).run.events("warning") if isinstance(one, Warned)]
    assert any('No step ran on the device "tpu"' in text for text in told)


def batch_norm() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))


def eager_in_a_loop() -> float:
    weights = torch.ones(4, requires_grad=True, device="tpu")
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for step in range(2):
        loss = (weights * step).cosh().sum()  # eager
        loss.backward()  # backward
        optimizer.step()
    return float(weights.sum().item())


def test_operations_have_their_line_and_shape() -> None:
    (text,) = (one.text for one in run(eager_in_a_loop).run.events("warning") if getattr(one, "code", "") == "eager")
    assert f"line {line_of(eager_in_a_loop, 'eager')} of {__file__}: 3 (mul float32[4], cosh float32[4], sum" in text
    assert f"line {line_of(eager_in_a_loop, 'backward')} of {__file__}" in text
    assert "UserWarning" not in run(eager_in_a_loop).run.log(0)


def eager_in_two_shapes() -> float:
    one, other = (torch.ones(size, device="tpu").exp().sum() for size in (4, 8))  # two
    return float((one + other).item())


def test_an_operation_in_two_shapes_is_named_once() -> None:
    records = run(eager_in_two_shapes).run.events("warning")
    (text,) = (one.text for one in records if isinstance(one, Warned) and one.code == "eager")
    assert "exp float32[4] and 1 other shape" in text


def higher_order() -> bool:
    from torch._higher_order_ops.out_dtype import out_dtype

    whole = torch.ones(4, 4, dtype=torch.int8)
    return bool((out_dtype(torch.ops.aten.mm.default, torch.int32, whole, whole) == 4).all())


def test_operators_of_a_higher_order_work_in_the_first_steps() -> None:
    assert run(higher_order).value is True


def deferred() -> float:
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        return eager_in_a_loop()


def test_operations_that_are_fused_are_counted_as_programs() -> None:
    counted = {}
    for function in (eager_in_a_loop, deferred):
        records = run(function).run.events("warning")
        (text,) = (one.text for one in records if isinstance(one, Warned) and one.code == "eager")
        counted[function] = int(text.split()[1])
    assert "groups of operations (DEFER_AND_FUSE) were compiled" in text and "line" not in text
    assert 0 < counted[deferred] < counted[eager_in_a_loop]


def with_batch_norm(model: Any = None) -> None:
    model = (model or batch_norm()).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(2):
        model(torch.randn(8, 4).to("tpu")).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("arguments", [(), (batch_norm(),)], ids=["built in the worker", "of the notebook"])
def test_what_batch_norm_does_not_learn_is_told(arguments: tuple[Any, ...]) -> None:
    records = run(with_batch_norm, *arguments).run.events("warning")
    assert "batch-norm" in [one.code for one in records if isinstance(one, Warned)]


def compiles_and_raises() -> None:
    torch.compile(lambda x: (x * 3).sum())(torch.ones(5).to("tpu"))
    raise ValueError("enough")


def test_a_run_that_fails_has_its_compiles() -> None:
    records = of(failed(compiles_and_raises))
    assert [one.trigger for one in records.events("compile") if isinstance(one, Compile)] == ["call"]


def resets() -> None:
    for size in (3, 4):
        function = torch.compile(lambda x: (x * 2).sum(), dynamic=False)
        function(torch.ones(size).to("tpu"))  # first
        torch.compiler.reset()
    torch.compile(lambda x: (x + 2).sum(), dynamic=False)(torch.ones(7).to("tpu"))  # another


def test_a_reset_of_torch_compile_does_not_end_the_listening() -> None:
    found = compiles(resets)
    assert [(one.site.line, one.recompile) for one in found] == [
        (line_of(resets, "first"), False),
        (line_of(resets, "first"), True),
        (line_of(resets, "another"), False),
    ]


def many() -> None:
    for number in range(70):  # functions; Dynamo describes the newest 64
        torch.compile(eval(f"lambda x: (x * {number + 2}).sum()"))(torch.ones(3).to("tpu"))


def test_every_compile_is_recorded_however_many_there_are() -> None:
    assert len(compiles(many)) == 70


def too_often() -> None:
    for size in range(1, 12):
        torch.compile(lambda x: (x * 2).sum(), dynamic=False)(torch.ones(size).to("tpu"))


def test_a_function_that_is_not_compiled_any_more_is_told() -> None:
    result = run(too_often)
    (text,) = (one.text for one in result.run.events("warning") if isinstance(one, Warned) and one.code == "given-up")
    assert "`<lambda>` (line " in text and "tensor 'x' size mismatch at index 0. expected 8, actual 9" in text
    assert result.compiles == 8


def breaks_the_observer() -> float:
    dynamo = importlib.import_module("tpu_magics.backends.torch_tpu.observe.dynamo")
    dynamo._inputs = None  # what it calls while torch.compile waits
    return float(torch.compile(lambda x: (x * 2).sum())(torch.ones(4).to("tpu")).item())


def test_an_error_of_the_observer_ends_the_monitoring_and_not_the_training() -> None:
    result = run(breaks_the_observer)
    assert result.value == 8.0 and result.compiles is None
    told = [one.text for one in result.run.events("warning") if isinstance(one, Warned)]
    assert any(text.startswith("Monitoring stopped (TypeError") for text in told)
