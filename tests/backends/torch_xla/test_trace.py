"""The graphs that are traced are the graphs that are trained: equal operations, parameters and results, and the same
memory donated, in the first step and in those after it. What XLA dumps when the same function is trained tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests import framework
from tests.backends.torch_xla import traced
from tests.backends.torch_xla.loops import placed
from tests.backends.torch_xla.traced import rows, same
from tpu_magics.backends.lowered import TraceResult
from tpu_magics.backends.torch_xla.trace.placeholders import ELEMENTS

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
STEPS = 6
ROWS = ELEMENTS // 8 + 1


def mlp() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def batch(size: int = 8) -> tuple[Any, Any]:
    return torch.randn(size, 8), torch.randint(0, 4, (size,))


def steady(found: TraceResult) -> Any:
    assert found.notes == ()
    return traced.steady(found)


# -- plain loops ------------------------------------------------------------------------------------------------------


def plain(model: Any, autocast: bool = False, clipped: bool = False, adam: bool = False) -> None:
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    kind = (torch.optim.AdamW, {"lr": 1e-3}) if adam else (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    optimizer = kind[0](model.parameters(), **kind[1])  # type: ignore[arg-type]
    rate = torch.optim.lr_scheduler.LinearLR(optimizer)
    for _ in range(STEPS):
        x, y = (one.to(device) for one in batch())
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=autocast):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        torch_xla.sync()


def test_dropout_and_adamw() -> None:
    found = same(plain, mlp(), adam=True)
    last = steady(found)
    assert (found.syncs, len(found.graphs), found.batch) == (3, 2, 8)
    assert last.site.code == "torch_xla.sync()" and last.nth == 1
    held = [name.partition(" ")[2] for name in last.parameters if name.endswith("3.weight")]
    assert sorted(held) == ["3.weight", "exp_avg of 3.weight", "exp_avg_sq of 3.weight"]
    assert {"f32[8,8] x", "s64[8] y"} <= set(last.parameters)
    assert {last.parameters[number].partition(" ")[2] for number in last.donors} >= {"0.bias", "exp_avg_sq of 0.bias"}
    assert "loss = functional.cross_entropy(model(x), y)" in {place.code for place in last.places.values()}


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.long), "bf16-downcast"])
def test_precision_of_the_options(precision: str) -> None:
    last = steady(same(plain, mlp(), precision=precision))
    assert "bf16[16,8] 0.weight" in last.parameters


def test_autocast_and_clipped_gradients() -> None:
    assert "f32[16,8] 0.weight" in steady(same(plain, mlp(), autocast=True, clipped=True)).parameters


class Convolution(torch.nn.Module):
    """Statistics of batches, a view of a view, and gradients that are kept until the next step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.convolution(x))), 2)
        x[:, 0].mul_(2)
        return self.out(x.flatten(2).transpose(1, 2).mean(1))


def keeps_gradients(model: Any) -> None:
    """Gradients are alive at the sync: what they are views of is computed, too."""
    import torch_xla

    device, optimizer = placed(model)
    total = torch.zeros((), device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x, y = torch.randn(8, 3, 8, 8).to(device), torch.zeros(8, dtype=torch.long).to(device)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        torch_xla.sync()


def test_convolution_and_batch_norm() -> None:
    last = steady(same(keeps_gradients, Convolution()))
    assert "f32[4] norm.running_mean" in last.parameters and "s64[] norm.num_batches_tracked" in last.parameters


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(12, 8)
        self.out = torch.nn.Linear(8, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.words(x)))


def tied(model: Any) -> None:
    import torch_xla

    device, optimizer = placed(model)
    for _ in range(STEPS):
        x = torch.randint(0, 12, (4, 5)).to(device)
        functional.cross_entropy(model(x).view(-1, 12), x.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_tied_weights_are_one_parameter() -> None:
    names = [name.partition(" ")[2] for name in steady(same(tied, Tied())).parameters]
    assert names.count("words.weight") == 1 and "out.weight" not in names


def holds_what_it_computed(model: Any) -> None:
    """An output that is kept holds its whole graph, in C++; and evaluation comes before training."""
    import torch_xla

    device, optimizer = placed(model)
    buffer = torch.zeros(4, 8, device=device)
    for _ in range(4):
        x, y = (one.to(device) for one in batch())
        buffer[1:3] = x[2:4]
        kept = functional.cross_entropy(torch.einsum("bi,bj->ij", model(x), model(x)), y[:4])  # noqa: F841
        torch_xla.sync()
    for _ in range(4):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_what_is_alive_is_computed_and_evaluation_is_not_taken_for_training() -> None:
    found = same(holds_what_it_computed, mlp())
    assert steady(found).nth > 3 and found.batch == 8


def with_loader(model: Any) -> None:
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    device, optimizer = placed(model)
    for x, y in MpDeviceLoader(torch.utils.data.DataLoader(rows(48), batch_size=8), device):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        xm.optimizer_step(optimizer)


def test_a_loader_of_xlas_own() -> None:
    last = steady(same(with_loader, mlp()))
    assert last.site.code.startswith("for x, y in MpDeviceLoader(") and "f32[8,8] x" in last.parameters


def with_large_batches(model: Any, loader: bool) -> None:
    """Too large to compute anything of: they reach the device without memory."""
    import torch_xla
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    device, optimizer = placed(model)
    batches = ((torch.ones(ROWS, 8), torch.zeros(ROWS, dtype=torch.long)) for _ in range(3))
    for x, y in MpDeviceLoader(batches, device) if loader else batches:
        functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not loader:
            torch_xla.sync()


@pytest.mark.parametrize("loader", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_large_batch_takes_no_memory_on_the_device(loader: bool) -> None:
    found = same(with_large_batches, mlp(), loader)
    assert found.batch == ROWS and any(one.startswith(f"f32[{ROWS},8]") for one in steady(found).parameters)


# -- libraries --------------------------------------------------------------------------------------------------------


def accelerated(model: Any, steps: int = 1, precision_of_it: str | None = None) -> None:
    """The batches have a mask, which the model asks whether it masks anything: that decides the program."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=steps, mixed_precision=precision_of_it)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = [{"x": x, "mask": torch.ones(8), "y": y} for x, y in rows(96)]
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for entry in loader:
        with accelerator.accumulate(model):
            x = entry["x"] if bool(entry["mask"].all()) else entry["x"] * entry["mask"]
            accelerator.backward(functional.cross_entropy(model(x), entry["y"]))
            optimizer.step()
            optimizer.zero_grad()


def test_accelerate_and_a_branch_on_the_batch() -> None:
    found = same(accelerated, mlp(), reads=1)
    assert "f32[4,8] x" in steady(found).parameters and found.batch == 4
    [read] = found.reads
    assert read.what == "a value: computed, because it depends only on the inputs"


def test_accelerates_own_precision() -> None:
    same(accelerated, mlp(), precision_of_it="bf16", reads=1)


@pytest.mark.parametrize("steps", [2, pytest.param(4, marks=pytest.mark.long)])
def test_accumulated_gradients(steps: int) -> None:
    found = same(accelerated, mlp(), steps, reads=1)
    assert found.syncs == 3 * steps
    assert any(name.endswith("exp_avg of 0.weight") for name in steady(found).parameters)


# -- what operations belong to ----------------------------------------------------------------------------------------


def checkpointed(model: Any, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device = framework.device()
    model.to(device)
    for _ in range(steps):
        x = torch.utils.checkpoint.checkpoint(model[:3], torch.ones(4, 8).to(device), use_reentrant=False)
        loss = model[3:](x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        framework.sync()


@pytest.mark.parametrize("function", [accelerated, checkpointed])
def test_operations_have_the_module_the_phase_and_the_line(function: Any) -> None:
    graph = steady(traced.traced(function, mlp()))
    known = set(graph.scopes) & set(graph.places)
    assert len(known) > 0.8 * len(graph.places)
    found = {(graph.scopes[number].module, graph.scopes[number].phase) for number in known}
    assert found >= {("0", "forward"), ("0", "backward"), ("3", "forward"), ("3", "backward")}
    assert (("0", "recompute") in found) == (function is checkpointed)
    assert any(phase == "optimizer" for _, phase in found)
    assert all(place.code for place in graph.places.values())


class Transformed(torch.utils.data.Dataset[Any]):
    """With a module that changes the data, in the thread of the loader."""

    def __init__(self) -> None:
        self.change = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        with torch.no_grad():
            return self.change(torch.ones(8))


def loads_with_modules(model: Any) -> None:
    import torch_xla.distributed.parallel_loader as pl

    device = framework.device()
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.1)
    for x in pl.MpDeviceLoader(torch.utils.data.DataLoader(Transformed(), batch_size=4), device):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Steps(torch.nn.Module):
    """A whole step, with its sync, in a forward."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.to(framework.device())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward(self, x: Any) -> None:
        self.model(x.to(framework.device())).pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        framework.sync()


def steps_in_a_module(model: Any) -> None:
    step = Steps(model)
    for _ in range(4):
        step(torch.ones(4, 8))


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(_context: Any, _gradient: Any) -> Any:
        raise ValueError("broken")


def catches_errors(model: Any) -> None:
    device = framework.device()
    optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="broken"):
        Breaks.apply(model(torch.ones(4, 8).to(device))).sum().backward()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8).to(device)).pow(2).mean().backward()
        optimizer.step()
        framework.sync()


@pytest.mark.parametrize("function", [loads_with_modules, steps_in_a_module, catches_errors])
def test_names_of_operations_break_nothing(function: Any) -> None:
    graph = steady(traced.traced(function, mlp()))
    found = {(one.module, one.phase) for one in graph.scopes.values()}
    assert any(phase == "backward" for _, phase in found)
    assert not any("Linear" in module for module, _ in found)
