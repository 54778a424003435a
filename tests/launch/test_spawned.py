"""Workers in new processes, where forks cannot start the device's runtime: the same results, and chosen by itself."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests import forks, framework
from tests.launch.launching import error_of, fake_notebook, run
from tpu_magics.launch import process, session
from tpu_magics.launch.strategies.forked import ForkedStrategy

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


@pytest.fixture
def spawning(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(session.current, "spawns", True)


def trains(model: Any, optimizer: Any, steps: list[int]) -> tuple[int, float]:
    device = framework.device()
    model.to(device)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 600).to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        framework.sync()
        steps.append(step)
    return os.getppid(), float(loss.item())


def large() -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = nn.Linear(600, 600)  # more than is packed into the pickle
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_the_results_are_those_of_forks(spawning: None) -> None:
    results = []
    for spawns in (True, False):
        session.current.spawns = spawns
        (model, optimizer), steps = large(), []
        found = run(trains, model, optimizer, steps)
        momentum = [one["momentum_buffer"] for one in optimizer.state.values()]
        results.append((found.value[1], *map(torch.clone, (*model.parameters(), *momentum)), steps))
        assert found.value[0] == os.getpid()  # it ends with this process
    for spawned, forked in zip(*results, strict=True):
        if isinstance(spawned, torch.Tensor):
            torch.testing.assert_close(spawned, forked)
        else:
            assert spawned == pytest.approx(forked)


def schedules(optimizer: Any, scheduler: Any, count: Any) -> float:
    device = framework.device()
    [weight] = optimizer.param_groups[0]["params"]
    moved = weight.detach().to(device)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    scheduler.step()
    return float((count() * moved).sum().item())


def counter() -> tuple[Any, Any]:
    """Two functions with a variable in common; one of them is in it."""
    number = 0

    def count() -> int:
        nonlocal number
        number += 1
        return number

    def reads() -> tuple[int, bool]:
        return number, count.reads is reads  # type: ignore[attr-defined]

    count.reads = reads  # type: ignore[attr-defined]
    return count, reads


def test_schedulers_and_functions_with_a_variable_in_common(spawning: None) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    count, reads = counter()
    notebook = fake_notebook()
    assert run(schedules, optimizer, scheduler, count).value == 2
    assert weight.tolist() == [0.5, 0.5] and optimizer.param_groups[0]["lr"] == 0.25 and len(optimizer.state) == 1
    assert scheduler.last_epoch == 1 and reads() == (1, True)
    if framework.TORCH_TPU:  # whose packages print, and whose operations are compiled one by one, which is told
        assert "unchanged here" not in notebook.printed and "differ" not in notebook.printed, notebook.printed
    else:
        assert not notebook.printed, notebook.printed
    optimizer.step()  # the notebook's own wrapper is there


def builds() -> float:
    model = nn.Linear(3, 1).to(framework.device())
    model.weight.data.fill_(2)
    loss = model(torch.ones(4, 3).to(framework.device())).sum()
    framework.sync()
    return float(loss - 4 * model.bias.sum())


def test_a_model_that_is_built_in_the_function(spawning: None) -> None:
    found = run(builds, hoist="auto")
    assert found.value == 24 and found.models["model"].weight.tolist() == [[2, 2, 2]]


def of_devices(tensors: dict[str, Any]) -> list[Any]:
    view, leaf, made = tensors["view"], tensors["leaf"], tensors["made"]
    tensors["base"].add_(5)
    (leaf * 3).sum().backward()
    found = [view.tolist(), leaf.grad.tolist(), made.tolist()]
    tensors["optimizer"].step()
    framework.sync()
    return found


def plus_one(leaf: torch.Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad += 1


def with_handles(weight: torch.Tensor, handle: Any, seen: list[int], loader: Any) -> int:
    weight.sum().backward()
    seen.append(handle.id)
    handle.remove()
    return len(list(loader))


def that_refer_to_each_other() -> None:
    """A handle has the dictionary of its tensor's hooks, and a hook has its tensor; a loader keeps processes."""
    weight, seen = torch.ones(2, requires_grad=True), list[int]()
    handle = weight.register_hook(lambda gradient: gradient * 3 + weight.detach() * 0)
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    loader = torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    assert run(with_handles, weight, handle, seen, loader).value == 4
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0]
    assert seen == [handle.id] and not weight._backward_hooks


def with_tensors_on_the_device() -> None:
    """Views, gradients, hooks, what has a graph, and the state of an optimizer; there, and here afterwards."""
    base = torch.ones(2, device=framework.device())
    leaf = torch.ones(2, device=framework.device(), requires_grad=True)
    if framework.TORCH_TPU:  # its engine has no queue for a device that came after the first backward()
        leaf.grad = torch.full_like(leaf, 2.0)
    else:
        (leaf * 2).sum().backward()
    leaf.register_hook(lambda gradient: gradient * 10)
    leaf.register_post_accumulate_grad_hook(plus_one)
    optimizer = torch.optim.AdamW([leaf], lr=0.5)
    tensors = {"base": base, "view": base[:1], "leaf": leaf, "made": leaf.detach() * 4, "optimizer": optimizer}
    found = run(of_devices, tensors).value
    assert found == [[6.0], [33.0, 33.0], [4.0, 4.0]], found
    assert tensors["view"].tolist() == [6.0] and leaf.grad is not None and leaf.grad.tolist() == [33.0, 33.0]
    kept = optimizer.state[leaf]
    assert {kept[name].device.type for name in ("exp_avg", "exp_avg_sq")} == {framework.device().type}
    optimizer.step()


def doubled(there: Any) -> list[Any]:
    there.mul_(2)
    framework.sync()
    return [there.sum().item(), there.device.type == framework.device().type]


def notebook_with_a_runtime() -> None:
    """Its later runs go on, in new processes."""
    torch.ones(1).to(framework.device())
    (model, optimizer), steps = large(), []
    notebook = fake_notebook()
    before = model.weight.clone()
    assert run(trains, model, optimizer, steps).value[0] == os.getpid()
    assert steps == [0, 1, 2] and not torch.equal(before, model.weight) and len(optimizer.state) == 2
    there = torch.full((2,), 3.0).to(framework.device())
    assert run(doubled, there).value == [12.0, True]  # it is on the device there, too
    assert there.tolist() == [6, 6] and there.device.type == framework.device().type
    told = " ".join(notebook.lines)
    assert "runtime already runs in this notebook, started by code that ran before" in told
    assert "On a TPU the run would be refused" in told


@pytest.fixture(scope="module")
def server() -> None:
    forks.server(framework.MODULES, "")  # it stays, and so is begun before a test looks what it leaves


@pytest.mark.usefixtures("server")
def test_a_rehearsal_goes_on_where_the_notebook_has_started_the_runtime() -> None:
    pytest.importorskip("cloudpickle")
    # Not in a fork of this process: torch's OpenMP threads, which an earlier test may have started, are not in it.
    program = "from tests import framework\nfrom tests.launch import test_spawned\nframework.import_framework()\n"
    program += "framework.begin_notebook()\n"
    for one in (notebook_with_a_runtime, with_tensors_on_the_device, that_refer_to_each_other):
        program += f"test_spawned.{one.__name__}()\n"
    forks.run(framework.MODULES, program, cwd=forks.ROOT)


def fails() -> None:
    raise ValueError("seen")


def test_an_error_has_its_rank_and_line(spawning: None) -> None:
    error = error_of(run, fails)
    assert "ValueError: seen" in error.what and 'raise ValueError("seen")' in "\n".join(error.lines())


def ranks() -> int:
    return framework.rank()


def test_ranks_of_a_rehearsal(spawning: None) -> None:
    assert run(ranks, processes=2).values == [0, 1]


def test_what_cannot_be_sent_is_named(spawning: None) -> None:
    lock = threading.Lock()

    def locks() -> bool:
        return lock.locked()

    error = error_of(run, locks)
    assert "`lock` cannot be sent to the workers" in error.what and "several hosts" not in error.why


def refuses_forks(*_args: Any, **_kwargs: Any) -> int:
    """A runtime that ends its process when it starts in a fork."""
    pid = os.fork()
    if not pid:
        os._exit(process.CRASHED)
    return pid


def test_it_is_chosen_where_no_fork_can_start_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cloudpickle")
    with monkeypatch.context() as patched:
        patched.setattr(process, "fork_worker", refuses_forks)
        patched.setattr(ForkedStrategy, "_may_spawn", lambda *_: True)  # as on a TPU, with TorchTPU
        assert run(ranks).value == 0 and session.current.spawns
    assert run(os.getpid).value != os.getpid() and session.current.spawns
