"""What the host asks for while a function is traced: what it gets, where and how often that is noted, that no step is
run for it, and that the graph around it is as in training."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.loops import placed
from tests.backends.torch_xla.traced import same, traced
from tpu_magics.backends.lowered import TraceResult
from tpu_magics.backends.torch_xla.trace.placeholders import CHOSEN, DISTINCT, FITTED, TENSOR, TRUE, VALUE
from tpu_magics.errors import TpuMagicsError

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
SHAPE = "the shape of nonzero or x[mask]"

library = torch.library.Library("tpu_magics_tests", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x * 2, "CPU")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)


Ask = Callable[[Any, Any], Any]  # (the model's output [8, 4], a mask of its shape) -> what the host got


def asks(model: Any, ask: Ask, told: Path, steps: int = 4) -> None:
    """A training that asks something in each step, and writes what it got, and what was compiled for it."""
    import torch_xla

    device, optimizer = placed(model)
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(torch.randn(8, 8).to(device))
        got = ask(output, output > 0)
        found = list(got.shape) if torch.is_tensor(got) and got.is_xla else got
        loss = functional.cross_entropy(output, torch.zeros(8, dtype=torch.long).to(device))
        if torch.is_tensor(got) and got.is_xla and got.is_floating_point():
            loss = loss + got.sum()
        loss.backward()
        optimizer.step()
        with told.open("a") as file:
            compiled = torch_xla._XLAC._xla_counter_value("UncachedCompile") or 0
            print(json.dumps([found if not torch.is_tensor(found) else found.tolist(), compiled]), file=file)
        torch_xla.sync()


def asked(ask: Ask, **options: Any) -> tuple[Any, TraceResult]:
    """What the host got in each of the steps (the same), and the trace. Nothing was compiled."""
    with tempfile.TemporaryDirectory() as folder:
        found = traced(asks, net(), ask, Path(folder) / "told", **options)
        told = [json.loads(line) for line in (Path(folder) / "told").read_text().splitlines()]
    assert found.settled and len(told) == found.syncs == 2
    assert [one for one in found.graphs if one.steady] == list(found.graphs)
    assert told[0] == told[1] and told[0][1] == 0, "something was compiled in this process"
    return told[0][0], found


def reads(found: TraceResult) -> list[tuple[str, int]]:
    """What was read in the lines of this file, and how often in each step."""
    assert all(one.place is not None and one.place.path == __file__ for one in found.reads)
    return [(one.what, one.count // found.syncs) for one in found.reads]


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "got", "what"),
    [
        (lambda x, _: x.sum().item(), 0.0, VALUE),
        (lambda x, _: x.argmax().item(), 0, VALUE),
        (lambda x, _: bool(x.sum() > -100), False, VALUE),
        (lambda x, _: float(x.mean()), 0.0, VALUE),
        (lambda x, _: int(x.mean()), 0, VALUE),
        (lambda x, _: f"{x.mean():.2f}", "0.00", VALUE),
        (lambda x, _: "more" if x.mean() > -100 else "less", "less", VALUE),
        (lambda x, _: x[0].tolist(), [0.0] * 4, TENSOR),
        (lambda x, _: x.detach().cpu().numpy().sum().item(), 0.0, TENSOR),
        (lambda x, _: x[0].detach().to("cpu", torch.float64), [0.0] * 4, TENSOR),
        (lambda x, _: torch.ones(4).copy_(x[0].detach()), [0.0] * 4, TENSOR),
        (lambda x, _: repr(x.sum().detach())[:10], "tensor(0.,", TENSOR),
        (lambda x, _: torch.equal(x, x), False, "whether tensors are equal"),
        (lambda x, _: torch.allclose(x, x), False, VALUE),
        (lambda x, _: math.isfinite(torch.nn.utils.get_total_norm([x]).item()), True, VALUE),
    ],
)
def test_a_value_is_zero(ask: Ask, got: Any, what: str) -> None:
    value, found = asked(ask)
    assert value == got and reads(found) == [(what, 1)]
    assert found.reads[0].place is not None and "lambda x, _:" in found.reads[0].place.code
    assert found.refused == ()


def test_a_read_leaves_the_steps_graph_whole() -> None:
    [graph] = asked(lambda x, _: x.sum().item())[1].graphs
    [other] = asked(lambda _x, _m: None)[1].graphs
    assert graph.hash == other.hash and graph.donors == other.donors


def asks_all(x: Any, mask: Any) -> list[Any]:
    """Through each of the operations that are held back, and with a number in the place of a tensor."""
    into = x.detach().clone()
    into[mask] = x.detach()[mask] * 2
    assert torch.zeros(4).copy_(torch.ones(4)).sum() == torch.arange(4).to(torch.float64).argmax() + 1
    return [x.sum().item(), into.cpu().tolist(), repr(x.sum().detach())[:10], torch.unique(x.detach()).numel() + 1]


def test_before_torch_2_9_they_are_held_back_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which Kaggle's image needs; elsewhere that is taken away which torch 2.8 lacks."""
    here, found = asked(asks_all)
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    there, other = asked(asks_all)
    assert here == there == [0.0, [[0.0] * 4] * 8, "tensor(0.,", 33]
    assert reads(found) == reads(other) and len(reads(found)) >= 4
    assert [graph.hash for graph in found.graphs] == [graph.hash for graph in other.graphs]


# -- shapes that depend on values -------------------------------------------------------------------------------------


def assigned(values: Callable[[Any, Any], Any]) -> Ask:
    def ask(x: Any, mask: Any) -> Any:
        copy = x.clone()
        copy[mask] = values(x, mask)
        return copy

    return ask


@pytest.mark.parametrize(
    ("ask", "shape", "whats"),
    [
        (lambda _, mask: mask.nonzero(), [32, 2], [f"{SHAPE}: {CHOSEN}"]),
        (lambda _, mask: torch.where(mask)[0], [32], [f"{SHAPE}: {CHOSEN}"]),
        (lambda x, mask: x[mask], [32], [f"{SHAPE}: {CHOSEN}"]),
        (lambda x, mask: x[mask[:, 0]], [8, 4], [f"{SHAPE}: {CHOSEN}"]),
        (lambda x, mask: x.masked_select(mask), [32], [f"the shape of masked_select: {CHOSEN}"]),
        (lambda x, _: torch.unique(x.detach()), [32], [f"the shape of unique: {DISTINCT}"]),
        (lambda x, _: torch.unique_consecutive(x.detach()), [32], [f"the shape of unique_consecutive: {DISTINCT}"]),
        (lambda x, _: torch.bincount(x.argmax(1)), [8], [f"the shape of bincount: {DISTINCT}"]),
        (
            lambda x, _: torch.repeat_interleave(x.detach(), x.argmax(1), dim=0),
            [8, 4],
            ["the shape of repeat_interleave: assumed that each element repeats once"],
        ),
        (assigned(lambda _x, _mask: 0.0), [8, 4], [f"{SHAPE}: {CHOSEN}"]),
        (assigned(lambda x, mask: x[mask] * 2), [8, 4], [f"{SHAPE}: {CHOSEN}"]),
        (
            assigned(lambda x, mask: torch.ones(int(mask.sum()), device=x.device)),
            [8, 4],
            [f"the number of values in x[mask] = values: {FITTED}", f"{SHAPE}: {CHOSEN}", VALUE],
        ),
    ],
)
def test_where_the_shape_depends_on_values_all_are_chosen(ask: Ask, shape: list[int], whats: list[str]) -> None:
    got, found = asked(ask)
    assert got == shape and sorted({what for what, _ in reads(found)}) == sorted(whats)


# -- operations that XLA lacks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (lambda x, _: torch.lgamma(x), ["aten::digamma", "aten::lgamma"]),
        (lambda x, _: x.detach().clone().lgamma_(), ["aten::lgamma"]),
        (lambda x, _: torch.lgamma(x.detach(), out=torch.empty_like(x.detach())), ["aten::lgamma"]),
        (lambda x, _: torch.histc(x.detach(), 4), ["aten::histc"]),
        (lambda x, _: torch.copysign(x.detach(), -1.0), ["aten::copysign.Tensor"]),
        (lambda x, _: torch.ops.tpu_magics_tests.twice(x.detach()), ["tpu_magics_tests::twice"]),
    ],
)
def test_what_the_host_runs_is_told_with_its_line(ask: Ask, names: list[str]) -> None:
    shape, found = asked(ask)
    assert shape in ([8, 4], [4]) and found.reads == ()
    assert sorted(one.op for one in found.refused) == names
    assert all(one.kind == "host" and one.place is not None for one in found.refused)
    assert all(one.count == found.syncs for one in found.refused)


# -- other places -----------------------------------------------------------------------------------------------------


def test_a_hook_of_the_backward_pass_is_the_persons_line() -> None:
    def ask(x: Any, _mask: Any) -> None:
        x.register_hook(lambda gradient: print(gradient.norm().item()))

    found = asked(ask)[1]
    assert reads(found) == [(VALUE, 1)]
    assert found.reads[0].place is not None and "gradient.norm().item()" in found.reads[0].place.code


def test_values_that_autograd_asks_for_in_its_own_thread(tmp_path: Path) -> None:
    """torch.linalg.eigvals is run by the host, and its backward pass too, where no line of the user's is."""

    def ask(x: Any, _mask: Any) -> Any:
        return torch.linalg.eigvals(x[:4] @ x[:4].T + torch.eye(4, device=x.device)).real.sum()

    found = traced(asks, net(), ask, tmp_path / "told")
    assert {"aten::linalg_eig", "aten::_linalg_eigvals"} & {one.op for one in found.refused}
    assert all(one.place is not None and one.place.path == __file__ for one in found.refused)


def test_what_the_host_runs_is_not_hidden_by_a_shape_that_it_asks_for() -> None:
    def ask(x: Any, _mask: Any) -> Any:
        return torch.special.bessel_j0(x.detach()).sum() + torch.unique(x.detach()).numel()

    found = asked(ask)[1]
    assert [one.op for one in found.refused] == ["aten::special_bessel_j0"]
    assert reads(found) == [(f"the shape of unique: {DISTINCT}", 1)] and found.batch == 8


def test_a_read_within_a_library_names_both_lines() -> None:
    def scales(x: Any, _mask: Any) -> Any:
        scaler: Any = torch.amp.GradScaler("cpu")
        found = {"found_inf_per_device": {0: x.detach().sum()}}
        return scaler._maybe_opt_step(SimpleNamespace(step=lambda: None), found)

    [read] = asked(scales)[1].reads
    assert read.inside is not None and read.inside.path == "torch/amp/grad_scaler.py" and not read.known
    assert read.place is not None and "scaler._maybe_opt_step(" in read.place.code


def test_a_tensors_own_methods_are_no_library() -> None:
    assert [one.inside for one in asked(lambda x, _: f"{x.mean():.2f}")[1].reads] == [None]


def test_a_library_that_fails_for_a_zero_is_named() -> None:
    def checks(x: Any, _mask: Any) -> Any:
        torch.distributions.Normal(x.detach().mean(), 1.0, validate_args=True)

    assert "(inside torch/distributions/distribution.py:" in failed(checks).details[-1]


def by_xm(how: str) -> Ask:
    def ask(x: Any, _mask: Any) -> Any:
        import torch_xla.core.xla_model as xm

        ways: dict[str, Callable[[], Any]] = {
            "save": lambda: xm.save({"x": x.detach()}, "saved.pt"),
            "closure": lambda: xm.add_step_closure(lambda it: print(it.item()), args=(x.sum().detach(),)),
        }
        return ways[how]()

    return ask


@pytest.mark.parametrize(("how", "what"), [("save", TENSOR), ("closure", VALUE)])
def test_torch_xlas_own_ways(how: str, what: str, tmp_path: Path) -> None:
    found = traced(asks, net(), by_xm(how), tmp_path / "told")
    assert found.settled and {one.what for one in found.reads} == {what}


# -- what is known ----------------------------------------------------------------------------------------------------


def branches_on_the_batch(model: Any, hidden: int) -> None:
    """The mask comes from the host: whether it masks anything is known, and decides which program is trained."""
    import torch_xla

    device, optimizer = placed(model)
    for _ in range(4):
        optimizer.zero_grad()
        x, mask = torch.randn(8, 8).to(device), (torch.arange(8) >= hidden).to(device)
        if not mask.all():
            x = x * mask
        model(x).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()


@pytest.mark.parametrize("hidden", [0, 2])
def test_what_follows_from_the_batch_is_true(hidden: int) -> None:
    found = same(branches_on_the_batch, net(), hidden, reads=1)
    assert reads(found) == [(f"{VALUE}: {TRUE}", 1)] and found.reads[0].known


def looks_at_what_it_uploaded(model: Any, told: Path) -> None:
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    x = torch.arange(8.0).to(device)
    told.write_text(json.dumps([x.tolist(), model.weight.sum().item(), model.weight[0].tolist()]))
    torch_xla.sync()
    for _ in range(8):
        y = model(x)  # noqa: F841
        torch_xla.sync()


def test_the_batch_itself_is_true_and_the_model_is_not(tmp_path: Path) -> None:
    found = traced(looks_at_what_it_uploaded, net(), tmp_path / "told")
    assert json.loads((tmp_path / "told").read_text()) == [list(range(8)), 0.0, [0.0] * 8]
    assert [what for what, _ in [(one.what, 0) for one in found.reads]] == [VALUE, TENSOR]


# -- astray -----------------------------------------------------------------------------------------------------------


def failed(ask: Ask) -> TpuMagicsError:
    with pytest.raises(TpuMagicsError) as caught:
        asked(ask)
    return caught.value


def endless(x: Any, _mask: Any) -> None:
    while x.mean().item() < 1:
        pass


def test_a_zero_that_leads_astray_is_named() -> None:
    error = failed(lambda x, _: 1 / x.sum().item())
    assert "asks failed during tracing: Rank 0 raised ZeroDivisionError" in error.what
    assert "Values that the function read (they are zero while it is traced):" in error.details
    assert "such a zero may be the cause" in error.why and "skip what reads the value" in error.todo
    assert any("lambda x, _: 1 / x.sum().item()" in line for line in error.details[-1:])
    assert "%tpu_logs" not in str(error)


def test_a_loop_that_waits_for_a_value_ends() -> None:
    error = failed(endless)
    assert "10,000 times without a sync" in error.what and "while x.mean().item() < 1:" in error.what
    assert error.todo.startswith("Use a fixed number of steps")


def test_memory_has_no_address() -> None:
    def ask(x: Any, _mask: Any) -> None:
        import torch_xla

        torch_xla._XLAC._unsafe_buffer_pointer(x)

    assert "the memory address of a tensor cannot be traced" in failed(ask).what


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
