"""Training on N ranks of a rehearsal is training on one with the same global batch: losses, weights, and what is
counted. Real forks, real torch_xla on XLA:CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests.backends.torch_xla.observe.test_recompile_cases import PROGRAMS, name_of
from tests.backends.torch_xla.rehearsed import home
from tests.cases.programs import Program
from tests.launch.launching import run
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.events import Compile, Transfer, only

pytestmark = pytest.mark.process
GLOBAL_BATCH = 16
STEPS = 20
Trained = tuple[list[float], list[Tensor]]


# -- the same losses and weights --------------------------------------------------------------------------------------


def samples() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(GLOBAL_BATCH * STEPS, 6, generator=generator)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())


def net() -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 2)
        )


def loss_of(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(x), y)


def plain_torch(_size: int = 1) -> Trained:
    """The reference: no XLA, no ranks."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x, y in torch.utils.data.DataLoader(samples(), batch_size=GLOBAL_BATCH):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()]


def with_accelerate(size: int) -> Any:
    import accelerate

    accelerator = accelerate.Accelerator()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(samples(), batch_size=GLOBAL_BATCH // size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses, home(list(accelerator.unwrap_model(model).parameters()))


def with_torch_xla(size: int) -> Any:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    model = net().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = samples()
    sampler: Any = torch.utils.data.DistributedSampler(data, xr.world_size(), xr.global_ordinal(), shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=GLOBAL_BATCH // size, sampler=sampler)
    losses = []
    for x, y in MpDeviceLoader(loader, torch_xla.device()):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(xm.mesh_reduce("loss", loss.item(), lambda all_of: sum(all_of) / len(all_of)))
    return losses, home(list(model.parameters()))


@pytest.mark.usefixtures("fresh_session", "libraries")
@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 8))])
@pytest.mark.parametrize("way", [with_accelerate, with_torch_xla])
def test_ranks_learn_what_one_learns_from_the_same_batches(way: Callable[[int], Any], size: int) -> None:
    losses, weights = plain_torch()
    assert len(losses) == STEPS and losses[-1] < losses[0]
    for found in run(way, size, workers=size, timeout=200.0).values:
        assert torch.allclose(torch.tensor(found[0]), torch.tensor(losses), rtol=0, atol=1e-5)
        for one, other in zip(found[1], weights, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)


# -- the same counts --------------------------------------------------------------------------------------------------


def trained(
    lengths: tuple[int, ...] = (8,) * 6,
    *,
    adam: bool = False,
    accumulate: int = 1,
    read: bool = False,
    after_backward: Callable[[Any, int], Any] | None = None,
    after_step: Callable[[Any, int], Any] | None = None,
) -> None:
    """A plain loop with one batch of each length, and what is done with the loss."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 4)).to("xla")
    optimizer = (torch.optim.AdamW if adam else torch.optim.SGD)(model.parameters(), lr=0.1)
    for step, length in enumerate(lengths):
        ids = torch.randint(0, 32, (4, length)).to("xla")
        loss = model(ids).pow(2).mean() / accumulate
        loss.backward()
        if read:
            assert loss.item() >= 0
        if after_backward is not None:
            after_backward(loss.detach(), step)
        if (step + 1) % accumulate == 0:
            xm.optimizer_step(optimizer)
            optimizer.zero_grad()
        if after_step is not None:
            after_step(loss.detach(), step)
        torch_xla.sync()


def fixed_shapes() -> None:
    trained()


def lengths_with_adam() -> None:
    trained((8, 9, 8, 10), adam=True)


def a_metric_gathered_each_step() -> None:
    import torch_xla.core.xla_model as xm

    metrics: dict[str, Any] = {}
    trained(after_step=lambda loss, _step: metrics.update(gathered=xm.all_gather(loss[None])))


def a_metric_reduced_and_read_each_step() -> None:
    import torch_xla.core.xla_model as xm

    trained(after_step=lambda loss, _step: xm.all_reduce("sum", loss, scale=0.5).item())


def a_read_in_the_middle() -> None:
    trained(read=True)


def a_read_in_the_middle_at_times() -> None:
    trained(adam=True, after_backward=lambda loss, step: loss.item() if step % 3 == 2 else None)


def accumulation() -> None:
    trained(accumulate=2)


def mesh_reduce_each_step() -> None:
    import torch_xla.core.xla_model as xm

    trained(after_step=lambda loss, _step: xm.mesh_reduce("loss", loss.item(), sum))


def an_evaluation_loop() -> None:
    import torch_xla
    import torch_xla.core.xla_model as xm

    trained()
    model = torch.nn.Linear(4, 2).to("xla").eval()
    right = torch.zeros((), device="xla")
    with torch.no_grad():
        for size in (4, 4, 4, 2):
            right += model(torch.ones(size, 4).to("xla")).argmax(1).sum()
            torch_xla.sync()
        assert xm.all_reduce("sum", right).item() >= 0


def prepared(accelerator: Any, **options: Any) -> Any:
    """Model, optimizer and loader, with as many batches for each rank as one alone has."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(24 * accelerator.num_processes, 4))
    return accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4, **options))


def accelerate_with_shuffling() -> None:
    import accelerate

    accelerator = accelerate.Accelerator()
    model, optimizer, loader = prepared(accelerator, shuffle=True)
    for _ in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()


def accelerate_with_clipping_and_metrics() -> None:
    import accelerate

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = prepared(accelerator)
    for _ in range(2):
        for (x,) in loader:
            with accelerator.accumulate(model):
                loss = model(x).pow(2).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        assert accelerator.gather_for_metrics(loss.detach()).mean().item() >= 0


COUNTED = (lengths_with_adam, a_read_in_the_middle, mesh_reduce_each_step, accelerate_with_clipping_and_metrics)
COUNTED_TOO = (
    *(fixed_shapes, a_metric_gathered_each_step, a_metric_reduced_and_read_each_step, a_read_in_the_middle_at_times),
    *(accumulation, an_evaluation_loop, accelerate_with_shuffling),
)


def counts(result: TrainResult, rank: int) -> dict[str, Any]:
    """What a rank's records tell of its compiles and reads."""
    compiles = only(result.run.events(rank=rank), Compile)
    reads = {event.site: event for event in only(result.run.events(rank=rank), Transfer)}
    return {
        "compiles": [(event.site.line, event.site.id, event.nth, event.recompile, event.cause) for event in compiles],
        "reads": sorted((site.line, event.count) for site, event in reads.items()),
    }


def same_counts(alone: TrainResult, several: TrainResult) -> None:
    """Each rank counts what one alone does."""
    size = len(several.values)
    assert [counts(several, rank) for rank in range(size)] == [counts(alone, 0)] * size
    assert (several.compiles, several.recompiles, several.steps) == (alone.compiles, alone.recompiles, alone.steps)


@pytest.mark.usefixtures("fresh_session", "libraries")
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", [*COUNTED, *(pytest.param(one, marks=pytest.mark.long) for one in COUNTED_TOO)])
def test_a_program_counts_the_same_on_one_rank_and_on_several(function: Callable[[], None], size: int) -> None:
    alone = run(function, workers=1)
    assert alone.compiles
    same_counts(alone, run(function, workers=size))


# accelerate and Trainer give each rank its part of the data: with two ranks there are half as many steps in an epoch,
# and another last batch.
SHARED_DATA = {
    *("code_accumulation_accelerate", "last_batch_accelerate", "last_batch_evaluation"),
    *("nothing_accelerate_evaluation", "state_accelerate", "state_and_warmup", "shape_trainer", "trainer_default"),
    "trainer_evaluation",
}


# A tensor that the first step alone leaves alive is one more result of its graph; where a collective has cut the graph
# behind it, it is a result of the piece before the cut in every step, alive later or not.
CUT_OFF = {"live_kept_from_first"}
CASES = [
    pytest.param(program, reduces, id=f"{name_of(program)}-{'gradients reduced' if reduces else 'as it is'}")
    for reduces in (False, True)
    for program in PROGRAMS
    if program.name not in SHARED_DATA and not (reduces and program.name in CUT_OFF)
]


def reducing(train: Callable[[], Any]) -> Callable[[], Any]:
    """The program with xm.reduce_gradients before each step of an optimizer: a collective in the midst of its graph."""

    def function() -> Any:
        import torch_xla.core.xla_model as xm
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: xm.reduce_gradients(optimizer))
        try:
            return train()
        finally:
            hook.remove()

    return function


@pytest.mark.long
@pytest.mark.usefixtures("fresh_session", "libraries")
@pytest.mark.parametrize(("program", "reduces"), CASES)
def test_a_recompile_case_counts_the_same_on_two_ranks(program: Program, reduces: bool) -> None:
    train = reducing(program.train()) if reduces else program.train()
    same_counts(run(train, workers=1), run(train, workers=2))
