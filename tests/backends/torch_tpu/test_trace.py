"""The preflight of a TorchTPU step: its programs are those of a training, its memory that of the tensors, and the TPU's
compiler takes it. Nothing of it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tpu_magics
from tests.launch.launching import run, said
from tpu_magics.backends.lowered import LoweredGraph, TraceResult
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import function_request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.panel.preflight import to_html, to_text
from tpu_magics.preflight.pipeline import trace_request
from tpu_magics.runs import events

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
WIDE = 256  # of a layer
WEIGHT = WIDE * WIDE * 4  # bytes
STEPS = 6


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


def compiled_model(rows: int = 16, steps: int = STEPS) -> None:
    model = Layers().to("tpu")
    step = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _step in range(steps):
        optimizer.zero_grad()
        step(torch.randn(rows, WIDE).to("tpu")).sum().backward()
        optimizer.step()


def compiled_step() -> None:
    model = Layers().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.compile(lambda x: nn.functional.mse_loss(model(x), x))
    for _step in range(STEPS):
        loss = loss_of(torch.randn(16, WIDE).to("tpu"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


def eager_model() -> None:
    model = Layers().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, WIDE).to("tpu")).sum().backward()
        optimizer.step()


def accumulates() -> None:
    model = Layers().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(model)
    for number in range(4 * STEPS):
        step(torch.randn(16, WIDE).to("tpu")).sum().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def evaluates() -> None:
    model = torch.compile(Layers().to("tpu").eval())
    with torch.no_grad():
        for _batch in range(1_000):
            model(torch.randn(16, WIDE).to("tpu"))


def distributed() -> None:
    dist.init_process_group("tpu")
    model = nn.parallel.DistributedDataParallel(Layers().to("tpu"), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(model)
    assert dist.get_world_size() == 8
    for _step in range(STEPS):
        optimizer.zero_grad()
        step(torch.randn(16, WIDE).to("tpu")).sum().backward()
        optimizer.step()


def on_the_host() -> None:
    model = Layers()
    for _step in range(STEPS):
        model(torch.randn(16, WIDE)).sum().backward()


def traced(function: Callable[..., None], *args: Any, world: int = 1, **options: Any) -> TraceResult:
    return trace_request(function_request(function, args), Options(**options), TracingOptions(world))


def of(found: TraceResult, name: str) -> LoweredGraph:
    [graph] = [one for one in found.graphs if one.name == name]
    return graph


@pytest.mark.parametrize("function", [compiled_model, compiled_step])
def test_the_programs_are_those_of_a_training(function: Callable[..., None]) -> None:
    trained = {one.graph for one in run(function).run.events("compile") if isinstance(one, events.Compile)}
    found = traced(function)
    assert {one.hash[:32] for one in found.graphs if not one.operations} == trained
    assert found.settled


def test_the_memory_beside_a_program_is_that_of_the_other_tensors() -> None:
    found = traced(compiled_model)
    forward, backward = of(found, "forward"), of(found, "backward")
    states = 4 * WEIGHT  # of AdamW, for two weights
    assert states <= forward.beside < states + 10_000
    assert states < backward.beside < states + 2 * WEIGHT + 100_000  # the weights that it does not take
    assert forward.parameters[1].startswith(f"f32[{WIDE},{WIDE}]")
    assert {one.partition(" ")[2] for one in forward.parameters} >= {"first.weight", "second.weight"}
    assert (forward.site and forward.site.code) == "return self.second(self.first(x).relu())"


def test_operations_have_their_module_their_phase_and_their_line() -> None:
    found = traced(compiled_step)
    forward, backward = of(found, "forward"), of(found, "backward")
    assert {(one.module, one.phase) for one in forward.scopes.values()} >= {("first", "forward"), ("second", "forward")}
    assert {(one.module, one.phase) for one in backward.scopes.values()} >= {("first", "backward"), ("", "backward")}
    code = {forward.places[number].code for number, one in forward.scopes.items() if one.module == "first"}
    assert code == {"return self.second(self.first(x).relu())"}


def test_operations_besides_are_counted() -> None:
    operations = of(traced(compiled_model), "operations")
    assert operations.operations is not None
    # AdamW reads and writes each weight, its gradient and both of its states, some of them several times.
    assert 14 * WEIGHT < operations.operations.moved < 100 * WEIGHT
    assert operations.beside >= 8 * WEIGHT


def test_a_model_that_is_not_compiled_is_counted() -> None:
    found = traced(eager_model)
    [graph] = found.graphs
    assert graph.operations is not None and found.settled and found.batch == 16
    # forward; backward of both layers by weight, of the second by its input as well
    assert graph.operations.flops == {"f32": 5 * 2 * 16 * WIDE * WIDE}


def test_an_accumulation_is_one_step() -> None:
    found = traced(accumulates)
    names = [found.graphs[place].name for place in found.sequence]
    assert names == [*["forward", "backward"] * 4, "operations"] * 2
    assert found.syncs == 2 and found.batch == 16


def test_an_evaluation_ends_early() -> None:
    found = traced(evaluates)
    assert found.settled and found.syncs < 20 and [one.name for one in found.graphs] == ["forward"]


def test_ranks_that_do_not_exist() -> None:
    found = traced(distributed, world=8)
    assert found.settled and {one.replicas for one in found.graphs} == {8}
    assert {one.name for one in found.graphs} == {"operations", "forward", "backward"}


def test_values_are_zeros_and_their_reads_are_told() -> None:
    found = traced(compiled_step)
    assert [one.place.code for one in found.reads if one.place] == ["print(loss.item())"]


def test_what_runs_on_the_host_has_no_step() -> None:
    with pytest.raises(TpuMagicsError) as error:
        traced(on_the_host)
    assert error.value.what == "on_the_host runs nothing on the TPU, so there is nothing to compile."
    assert 'model.to("tpu")' in error.value.todo


def has_dynamic_dimensions() -> None:
    step = torch.compile(nn.Linear(8, 8).to("tpu"))
    for rows in range(8, 12):
        x = torch.randn(rows, 8).to("tpu")
        torch._dynamo.mark_dynamic(x, 0, min=8, max=16)
        step(x).sum().backward()


def test_dynamic_dimensions_are_refused() -> None:
    with pytest.raises(TpuMagicsError) as error:
        traced(has_dynamic_dimensions)
    assert "A step with dynamic dimensions cannot be traced" in said(error.value)


def test_the_tpus_compiler_takes_it() -> None:
    shown = tpu_magics.preflight(compiled_model, target="v5e-1", kept=False, precision="bf16")
    [found] = shown.results
    assert all("other tensors" in text for text in (to_html(shown), to_text(shown)))
    assert found.status == "fits" and found.bf16_share == 1 and found.rate is not None and found.rate.batch == 16
    forward = found.compiled[found.traced.graphs.index(of(found.traced, "forward"))]
    assert forward.flops is not None and forward.flops >= 4 * 16 * WIDE * WIDE
    assert forward.memory is not None and forward.memory.beside == of(found.traced, "forward").beside


def test_batches_and_precisions_are_compared() -> None:
    axes = ("rows=16,512", "precision=fp32,bf16")
    found = tpu_magics.preflight(compiled_model, target="v5e-1", kept=False, compare=axes)
    assert [one.variant.label for one in found.compared] == [
        f"rows={rows}, precision={name}" for rows in (16, 512) for name in ("fp32", "bf16")
    ]
    results = [one.results[0] for one in found.compared]
    assert [(one.rate and one.rate.batch, one.bf16_share) for one in results] == [(16, 0), (16, 1), (512, 0), (512, 1)]
    assert all(one.profile.seconds for one in results)


def test_a_batch_is_advised() -> None:
    advice = tpu_magics.preflight(compiled_model, 3, target="v5e-1", kept=False, advise=True).advice
    tried = {one.what: one for one in advice.tried}
    assert set(tried) == {"multiply in bf16", "rows = 8", "rows = 16"}
    assert tried["rows = 16"].worth and tried["rows = 16"].after is not None
    assert tried["rows = 16"].after.rate is not None and tried["rows = 16"].after.rate.batch == 16


@pytest.mark.parametrize("options", [{"compare": "remat=on,off"}, {"mesh": "data=1"}])
def test_what_changes_models_in_a_trace_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TpuMagicsError) as error:
        tpu_magics.preflight(compiled_model, target="v5e-1", kept=False, **options)
    assert "is for torch_xla: this is a function of torch_tpu" in said(error.value)


class Expands(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4096), nn.Linear(4096, 8)


def large_batch(rows: int) -> None:
    model = Expands().to("tpu")
    step = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(STEPS):
        optimizer.zero_grad()
        step(torch.zeros(rows, 8).to("tpu")).sum().backward()
        optimizer.step()


def test_a_batch_that_does_not_fit_takes_no_memory_here() -> None:
    [found] = tpu_magics.preflight(large_batch, 1_500_000, target="v5e-1", kept=False).results
    assert found.status == "too-large" and found.worst.memory is not None
    assert found.worst.memory.needed > 20 * 2**30
