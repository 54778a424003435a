"""Graphs that torch_xla's cache takes for one return the values of each: in every way to read, and as whole steps."""

from __future__ import annotations

import copy
import io
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.launch.launching import run
from tpu_magics.backends.torch_xla import graph_cache
from tpu_magics.backends.torch_xla.graph_cache import GraphCache
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.events import Warned

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
Tree = tuple[Any, ...] | int  # an operation and its operands, or the number of an input


@pytest.fixture(scope="module", autouse=True)
def _forking() -> None:
    forks.server("torch_xla", "")


# -- pairs of graphs with one hash ------------------------------------------------------------------------------------

OPS: tuple[Callable[..., torch.Tensor], ...] = (torch.add, torch.mul, torch.sub, torch.matmul)


def pairs(seed: int, count: int) -> Iterator[tuple[Tree, Tree]]:
    """Two trees each, the same but for which input stands where."""
    rng = random.Random(seed)
    while count:
        places = rng.choice((3, 3, 3, 5))
        first, second = ([rng.randrange(3) for _ in range(places)] for _ in range(2))
        if first != second and len(set(first)) == len(set(second)):
            shape = rng.getrandbits(32)
            yield _tree(random.Random(shape), iter(first), places), _tree(random.Random(shape), iter(second), places)
            count -= 1


def _tree(rng: random.Random, inputs: Iterator[int], places: int) -> Tree:
    if places == 1:
        return next(inputs)
    left = rng.randint(1, places - 1)
    return rng.choice(OPS), _tree(rng, inputs, left), _tree(rng, inputs, places - left)


def value(tree: Tree, inputs: list[torch.Tensor]) -> torch.Tensor:
    return inputs[tree] if isinstance(tree, int) else tree[0](*(value(one, inputs) for one in tree[1:]))


def saved(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save({"it": tensor}, file)
    file.seek(0)
    return torch.load(file)["it"].cpu()


def converted(tensor: torch.Tensor) -> torch.Tensor:
    from torch_xla.core import xla_model

    return xla_model._maybe_convert_to_cpu({"it": tensor})["it"]


def synced(tensor: torch.Tensor) -> torch.Tensor:
    import torch_xla

    torch_xla.sync()
    return tensor.cpu()


def set_into(tensor: torch.Tensor) -> torch.Tensor:
    into = torch.zeros(2, 3, 3)
    into[0] = tensor
    return into[0]


READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cpu": lambda one: one.cpu(),
    "to": lambda one: one.to("cpu"),
    "to a device": lambda one: one.to(torch.device("cpu"), torch.float64).float(),
    "type": lambda one: one.type(torch.FloatTensor),
    "like a host tensor": lambda one: one.to(torch.zeros(1)),
    "copy_": lambda one: torch.empty(3, 3).copy_(one),
    "set into": set_into,
    "item": lambda one: torch.tensor(one.sum().item()),
    "bool": lambda one: torch.tensor(bool((one > 0.5).all())),
    "tolist": lambda one: torch.tensor(one.tolist()),
    "save": saved,
    "convert": converted,
    "sync": synced,
    "module": lambda one: torch.nn.ParameterList([one]).cpu()[0].detach(),
}


def read_pairs(seed: int, count: int) -> dict[str, Any]:
    """What was read wrongly, and how many graphs needed a name."""
    import torch_xla

    device = torch_xla.device()
    host = list(torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(seed)))
    inputs = [one.to(device) for one in host]
    torch_xla.sync()
    rng = random.Random(seed)
    wrong = []
    for number, pair in enumerate(pairs(seed, count)):
        name = rng.choice(list(READERS))
        values = [value(tree, inputs) for tree in pair]
        read = [READERS[name](one) for one in values]
        right = [READERS[name](value(tree, host)) for tree in pair]
        wrong += [
            (number, name, pair) for a, b in zip(read, right, strict=True) if not torch.allclose(a, b, 1e-4, 1e-5)
        ]
        torch_xla.sync()
    cache = graph_cache.active[0]
    return {"wrong": wrong, "named": sum(len(one) - 1 for one in cache.graphs.values()), "stopped": cache.stopped}


# -- programs -------------------------------------------------------------------------------------------------------


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model = torch.nn.Sequential(*layers)
    model[3].weight = model[2].weight  # tied
    return model


def train_reading(model: Any, device: Any, sync: Callable[[], None]) -> list[torch.Tensor]:
    """Reads what people read in the loop: the best state, an average on the host, a norm for each parameter."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = copy.deepcopy(model)
    read = []
    for step in range(2):
        x = torch.rand(6, 4, generator=torch.Generator().manual_seed(step)).to(device)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.3)
        state = {name: one for name, one in model.state_dict().items() if "running_var" not in name}  # XLA's differs
        read += [one.detach().cpu().clone().float() for one in state.values()]
        read += [torch.tensor(one.norm().item()) for one in list(average.parameters())[-2:]]
        sync()
        read.append(torch.tensor(loss.item()))
    return read + [one.detach().cpu() for one in (*model.parameters(), *average.parameters())]


def trained_reading() -> list[torch.Tensor]:
    import torch_xla

    return train_reading(net().to(torch_xla.device()), torch_xla.device(), torch_xla.sync)


def swapped_steps() -> list[bool]:
    """The example of the issue in torch_xla, as steps and as compiled functions."""
    import torch_xla

    host = [torch.rand(4, 4) for _ in range(3)]
    inputs = [one.to(torch_xla.device()) for one in host]
    steps = [lambda a, b, c: (a.T, b.T, c.T, a * b + c), lambda a, b, c: (a.T, b.T, c.T, a * c + b)]
    right = []
    for step in steps * 2:
        made = step(*inputs)
        torch_xla.sync()
        right.append(torch.allclose(made[3].cpu(), step(*host)[3]))
    compiled = [torch.compile(step, backend="openxla") for step in steps]
    for step, own in [*zip(steps, compiled, strict=True)] * 2:
        right.append(torch.allclose(own(*inputs)[3].cpu(), step(*host)[3]))
    first, second = ((inputs[one] * (inputs[0] + inputs[1])).cpu() for one in (0, 1))
    return [*right, not torch.allclose(first, second)]


def ordinary() -> int:
    """A loss that is read before the sync, and two models of one form: how many graphs needed a name."""
    import torch_xla

    device = torch_xla.device()
    models = [torch.nn.Linear(4, 4).to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
    graphs = graph_cache.active[0].graphs
    before = {key: len(one) for key, one in graphs.items()}
    for _ in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = model(torch.rand(2, 4).to(device)).pow(2).mean()
            loss.backward()
            optimizer.step()
            loss.item()
        torch_xla.sync()
    return sum(len(one) - before.get(key, 1) for key, one in graphs.items())


def compiled_training() -> str:
    """A model that torch.compile trains; why graphs are no longer compared."""
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to(device)
    fast = torch.compile(model, backend="openxla")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        x, y = torch.randn(16, 8).to(device), torch.randint(0, 2, (16,)).to(device)
        torch.nn.functional.cross_entropy(fast(x), y).backward()
        optimizer.step()
        torch_xla.sync()
    base = torch.zeros(4, device=device)
    with torch.no_grad():
        view = base.view(2, 2)
    base.add_(torch.ones(4, device=device, requires_grad=True))
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        assert view.grad_fn is not None
    torch_xla.sync()
    return graph_cache.active[0].stopped


def all_programs() -> dict[str, Any]:
    return {
        "pairs": read_pairs(1, 50),
        "ordinary": ordinary(),
        "reading": trained_reading(),
        "steps": swapped_steps(),
        "compiled training": compiled_training(),
        "after compile": read_pairs(2, 4),
    }


@pytest.fixture(scope="module")
def trained() -> TrainResult:
    return run(all_programs, timeout=900.0)


def test_fifty_pairs_of_symmetric_graphs_are_read_as_on_a_cpu(trained: TrainResult) -> None:
    found = trained.value["pairs"]
    assert found["wrong"] == [] and found["stopped"] == ""
    assert found["named"] > 20  # or they were no pairs


def test_weights_that_are_read_in_the_loop_are_those_of_a_cpu(trained: TrainResult) -> None:
    right = train_reading(net(), "cpu", lambda: None)
    for number, (own, other) in enumerate(zip(trained.value["reading"], right, strict=True)):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-5), number


def test_whole_steps_and_compiled_functions_are_told_apart(trained: TrainResult) -> None:
    assert trained.value["steps"] == [True] * 9


def test_reads_are_compared_when_torch_compile_has_begun(trained: TrainResult) -> None:
    """Then other hooks see them: Dynamo would trace through wrapped methods."""
    found = trained.value["after compile"]
    assert found["wrong"] == [] and found["stopped"] == ""


def test_a_training_of_torch_compile_is_compared_to_its_end(trained: TrainResult) -> None:
    assert trained.value["compiled training"] == ""


def test_an_ordinary_program_has_no_graph_more(trained: TrainResult) -> None:
    assert trained.value["ordinary"] == 0


def test_it_is_told_once(trained: TrainResult) -> None:
    found = [one for one in trained.run.events("warning") if isinstance(one, Warned)]
    told = [one.text for one in found if one.code == "wrong-values-prevented"]
    assert len(told) == 1 and told[0].startswith("Line ") and Path(__file__).name in told[0]


@pytest.mark.long
def test_pairs_are_read_right_under_spmd() -> None:
    found = run(read_pairs, 3, 50, spmd=2, timeout=300.0).value
    assert found["wrong"] == [] and found["stopped"] == "" and found["named"] > 20


def with_collectives(seed: int, count: int) -> dict[str, Any]:
    """Only one rank reads in the middle of the step."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    found = read_pairs(seed, count) if xr.global_ordinal() else {}
    model = torch.nn.Linear(3, 3).to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 3).to(torch_xla.device())).sum().backward()
        xm.optimizer_step(optimizer)
        if xr.global_ordinal():
            [one.cpu() for one in model.parameters()]
        torch_xla.sync()
    return found


@pytest.mark.long
def test_one_rank_may_read_alone() -> None:
    first, second = run(with_collectives, 4, 30, workers=2, timeout=300.0).values
    assert first == {} and second["wrong"] == [] and second["named"] > 10


# -- the names --------------------------------------------------------------------------------------------------------


def test_names_outlive_the_process_beside_the_compiled_programs(tmp_path: Path) -> None:
    """The cache of compiled programs is on disk on a TPU: the graph that came first in another run has no name."""
    file = tmp_path / graph_cache.KEPT
    GraphCache(file)._keep("hash", "first")
    GraphCache(file)._keep("hash", "second")
    file.write_text(file.read_text() + "half a li")
    assert GraphCache(file).graphs["hash"] == ["first", "second"]


def test_its_own_error_ends_it_and_not_the_training() -> None:
    cache = GraphCache()
    told: list[tuple[str, str]] = []

    def broken(*_args: object) -> str:
        raise ValueError("broken")

    cache._name_of_read = broken  # type: ignore[method-assign]
    cache._name_of_sync = broken  # type: ignore[method-assign]
    assert cache.read((), lambda: 1) == cache.sync("", lambda: 1) == 1
    cache.tell(lambda _frame, code, text: told.append((code, text)))
    assert [code for code, _text in told] == ["graphs-not-compared"] and "ValueError: broken" in told[0][1]


GRAPH = """
HloModule IrToHlo.9
%Sum.1 (x.1: f32[], y.2: f32[]) -> f32[] {
  %y.2 = f32[] parameter(1)
  %x.1 = f32[] parameter(0)
  ROOT %add.3 = f32[] add(f32[] %x.1, f32[] %y.2)
}
ENTRY %IrToHlo.9 (p0.2: f32[3], p1.3: f32[3]) -> (f32[]) {
  %p0.2 = f32[3]{0} parameter(0)
  %p1.3 = f32[3]{0} parameter(1)
  %constant.4 = f32[] constant(0)
  %add.5 = f32[3]{0} add(f32[3]{0} %p0.2, f32[3]{0} %p1.3), metadata={op_type="aten__add" source_line=7}
  %multiply.6 = f32[3]{0} multiply(f32[3]{0} %p0.2, f32[3]{0} %add.5)
  %reduce.7 = f32[] reduce(f32[3]{0} %multiply.6, f32[] %constant.4), dimensions={0}, to_apply=%Sum.1
  ROOT %tuple.8 = (f32[]) tuple(f32[] %reduce.7)
}
"""


def test_graphs_differ_only_where_an_input_stands_elsewhere() -> None:
    same = graph_cache.wiring_of(GRAPH)
    twice = GRAPH.replace("%add.5)", "%add.9)").replace(
        "  %multiply.6", "  %add.9 = f32[3]{0} add(f32[3]{0} %p0.2, f32[3]{0} %p1.3)\n  %multiply.6"
    )
    renamed = GRAPH.replace("add.5", "add.50").replace("Sum.1", "Sum.2").replace("source_line=7", "source_line=8")
    assert twice != GRAPH and graph_cache.wiring_of(twice) == graph_cache.wiring_of(renamed) == same
    for other in (
        GRAPH.replace("multiply(f32[3]{0} %p0.2", "multiply(f32[3]{0} %p1.3"),
        GRAPH.replace("add(f32[] %x.1", "add(f32[] %y.2"),
    ):
        assert other != GRAPH and graph_cache.wiring_of(other) != same


def reads_in_threads() -> list[float]:
    import torch_xla

    found: list[float] = []

    def read(number: int) -> None:
        for more in range(3):
            x = torch.arange(20.0 + number, device=torch_xla.device())
            found.append(x.gather(0, torch.arange(3 + more, device=x.device)).sum().item())

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sorted(found)


def test_threads_that_read_do_not_wait_for_each_other_forever() -> None:
    assert run(reads_in_threads).value == [3.0] * 6 + [6.0] * 6 + [10.0] * 6
