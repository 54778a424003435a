"""Several ranks on XLA:CPU: the world they see, collectives that come to nothing, and what is refused."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

from tests.launch.launching import failed, fake_notebook, place_of, refused, run, said
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import plan, session
from tpu_magics.launch.options import ALL_DEVICES, NO_SPMD, Options, spmd_option
from tpu_magics.launch.plan import Plan
from tpu_magics.runs.events import Start, only

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
LONG = pytest.mark.long


# -- the world --------------------------------------------------------------------------------------------------------


def the_world() -> dict[str, Any]:
    return {
        "rank": (xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xm.get_local_ordinal()),
        "size": (xr.world_size(), xr.global_device_count(), xr.process_count(), xr.local_process_count()),
        "devices": (xr.addressable_device_count(), str(torch_xla.device())),
        "master": xm.is_master_ordinal(),
        "local_rank": os.environ.get("LOCAL_RANK"),
        "pid": os.getpid(),
    }


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=LONG)])
def test_each_worker_is_a_rank_of_the_world(ranks: int) -> None:
    result = run(the_world, processes=ranks)
    for rank, told in enumerate(result.values):
        assert told["rank"] == (rank,) * 4 and told["size"] == (ranks,) * 4
        assert told["devices"] == (1, "xla:0") and told["master"] == (rank == 0)
        # On a TPU accelerate asks torch_xla, on a CPU this variable.
        assert told["local_rank"] == (None if session.current.tpu_branch else str(rank))
    assert len({told["pid"] for told in result.values}) == ranks
    assert [result.run.log(rank) for rank in range(ranks)] == [""] * ranks  # gloo does not greet
    assert [start.world_size for start in only(result.run.events(), Start)] == [ranks] * ranks
    assert result.run.info["plan"]["rehearsed"] is True and result.run.info["plan"]["collective_timeout"] == 60.0


def accelerates() -> tuple[Any, ...]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    state = accelerator.state
    return state.distributed_type.value, state.num_processes, state.process_index, accelerator.is_main_process


def test_accelerate_sees_it_too() -> None:
    assert run(accelerates, processes=3).values == [("XLA", 3, rank, rank == 0) for rank in range(3)]


def test_the_session_sets_the_number_of_ranks_and_a_cell_overrides_it() -> None:
    session.initialise(processes=2, collective_timeout=7.0)
    result = run(the_world)
    assert len(result.values) == 2 and result.run.info["plan"]["collective_timeout"] == 7.0
    alone = run(the_world, processes=1)
    assert alone.value["size"] == (1, 1, 1, 1) and alone.run.info["plan"]["rehearsed"] is False
    assert run(the_world, collective_timeout=9.0).run.info["plan"]["collective_timeout"] == 9.0


# -- weights ----------------------------------------------------------------------------------------------------------


def trains(model: Any, reduce: bool) -> None:
    optimizer = torch.optim.SGD(model.to("xla").parameters(), lr=0.1)
    for _ in range(2):
        model(torch.full((2, 4), 1.0 + xr.global_ordinal(), device="xla")).sum().backward()
        xm.optimizer_step(optimizer) if reduce else optimizer.step()
        torch_xla.sync()


@pytest.mark.parametrize("reduce", [pytest.param(True, marks=LONG), False])
def test_ranks_that_trained_alone_are_named(reduce: bool) -> None:
    notebook = fake_notebook()
    result = run(trains, torch.nn.Linear(4, 2), reduce, processes=3)
    [model] = result.models
    said_so = (
        f"Some ranks ended with different weights than rank 0, whose weights are kept: `{model}` (ranks 1, 2). The "
        "gradients were not averaged"
    )
    shown = "".join(str(one) for _, _, one in notebook.shown)
    assert [said_so in text for text in result.run.summary().warnings] == ([] if reduce else [True])
    assert (said_so in shown) is not reduce


# -- collectives that come to nothing ---------------------------------------------------------------------------------


def reduce_late(late: int, seconds: float) -> None:
    ones = torch.ones(3, device="xla")
    if xr.global_ordinal() == late:
        time.sleep(seconds)  # elsewhere
    xm.all_reduce("sum", [ones])  # waits


def test_a_rank_that_never_comes_is_named_with_its_line() -> None:
    started = time.monotonic()
    error = failed(reduce_late, 2, 100.0, processes=4, collective_timeout=3.0)
    text = said(error)
    assert "Ranks 0, 1 and 3 waited 3 s in all_reduce sum of float32[3] at `xm.all_reduce" in text
    assert f"{place_of('waits', __file__)}, in reduce_late): rank 2 never entered it." in text
    assert "Rank 2: at `time.sleep(seconds)" in text and f"{place_of('elsewhere', __file__)}, in reduce_late" in text
    assert "On a TPU the run would hang" in text and "--collective-timeout" in text
    assert "Also died" not in text
    assert time.monotonic() - started < 30


def reduce_on_one() -> None:
    if xr.global_ordinal() == 0:
        xm.all_reduce("sum", [torch.ones(3, device="xla")])


def reduce_shapes_of_rank() -> None:
    xm.all_reduce("sum", [torch.ones(3 + xr.global_ordinal() // 2, device="xla")])


def two_ways() -> None:
    if xr.global_ordinal() == 1:
        xm.rendezvous("saved")  # meets
    else:
        xm.all_reduce("sum", [torch.ones(3, device="xla")])  # reduces


def groups_of_rank() -> None:
    groups = [[0, 1], [2, 3]] if xr.global_ordinal() == 0 else None
    xm.all_reduce("sum", [torch.ones(3, device="xla")], groups=groups)


def a_barrier_of_some() -> int:
    import torch.distributed as dist

    dist.init_process_group("xla", init_method="xla://")
    some = dist.new_group([0, 1])
    if xr.global_ordinal() < 2:
        dist.barrier(group=some)
    return xr.global_ordinal()


def changes_in_place() -> tuple[list[float], list[float], list[float]]:
    twice = torch.ones(2, device="xla")
    xm.all_reduce("sum", [twice, twice])
    y, z = torch.ones(2, device="xla", requires_grad=True), torch.full((2,), 3.0, device="xla")
    product = y * z
    xm.all_reduce("sum", [z])
    product.sum().backward()  # torch_xla does not tell autograd that z has changed
    gathered = xm.all_gather(y)
    assert gathered.requires_grad and y.grad is not None
    return twice.tolist(), z.tolist(), y.grad.tolist()


def test_tensors_are_reduced_once_and_autograd_does_not_mind() -> None:
    for twice, z, gradient in run(changes_in_place, processes=3).values:
        assert (twice, z) == ([3.0, 3.0], [9.0, 9.0]) and gradient == [9.0, 9.0]


def reads_without_a_sync() -> None:
    layer = torch.nn.Linear(4, 2).to("xla")
    with torch.no_grad():
        for _ in range(12):
            xm.all_gather(layer(torch.ones(3, 4).to("xla"))).sum().item()


def reads_what_it_sent() -> None:
    total = torch.zeros(3).to("xla")
    for _ in range(2):
        total += 2
        xm.all_reduce("sum", [total])
        torch.ones(4).to("xla").cpu()  # nothing to compute leads to it
        torch_xla.sync()


def evaluates() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    rows = torch.utils.data.TensorDataset(torch.ones(12, 4), torch.zeros(12, dtype=torch.long))
    model, loader = accelerator.prepare(torch.nn.Linear(4, 2), torch.utils.data.DataLoader(rows, batch_size=2))
    for inputs, labels in loader:
        with torch.no_grad():
            guesses = model(inputs).argmax(dim=-1)
        accelerator.gather(guesses) == accelerator.gather(labels)


def test_two_collectives_in_a_line_are_two_graphs_and_no_riddle() -> None:
    result = run(evaluates, processes=2)
    compiles = result.run.events("compile", rank=0)
    assert [one.cause for one in compiles if one.recompile and one.cause == "unknown"] == []
    [alone] = [one for one in compiles if one.pieces == 0]
    assert alone.cause == "new-code" and "only a collective" in alone.text and "No action needed" in alone.fix


def test_what_cannot_be_counted_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    result = run(trains, torch.nn.Linear(4, 2), True, processes=2)
    assert result.compiles is None and result.recompiles is None and result.steps == 2
    assert any("the number of compiles is n/a" in text for text in result.run.summary().warnings)


def compiles_a_forward() -> None:
    layer = torch.nn.Linear(4, 2).to("xla")
    function = torch.compile(layer, backend="openxla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        with torch.no_grad():
            function(torch.ones(3, 4).to("xla"))
        layer(torch.ones(3, 4).to("xla")).sum().backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        torch_xla.sync()


def raises_on(rank: int) -> None:
    if xr.global_ordinal() == rank:
        raise ValueError("mine")
    xm.all_reduce("sum", [torch.ones(3, device="xla")])


def test_an_exception_is_to_blame_and_not_the_collective_that_it_broke() -> None:
    error = failed(raises_on, 1, processes=3)
    assert error.rank == 1 and "Rank 1 raised ValueError: mine" in said(error)
    assert "Also failed: ranks 0 and 2 (in all_reduce sum of float32[3]): a consequence" in said(error)


def compiles_a_collective() -> None:
    layer = torch.nn.Linear(4, 4).to("xla")
    function = torch.compile(lambda x: xm.all_reduce("sum", layer(x)).sum(), backend="openxla", fullgraph=True)
    with torch.no_grad():
        function(torch.ones(2, 4, device="xla"))


def reduces_in_a_thread() -> None:
    """On one rank only, and nobody looks what has become of it."""
    if xr.global_ordinal():
        value = torch.ones(2, device="xla")
        thread = threading.Thread(target=xm.all_reduce, args=("sum", value))
        thread.start()
        thread.join()


def leaves_a_thread() -> None:
    """The function returns while its thread waits for the other rank."""
    if not xr.global_ordinal():
        threading.Thread(target=xm.rendezvous, args=("alone",)).start()


def compiles_a_step() -> list[float]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 1).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        loss = layer(x).pow(2).sum()
        loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        return loss

    whole = torch_xla.compile(step, full_graph=True)
    losses = [float(whole(torch.full((2, 4), 1.0 + xr.global_ordinal(), device="xla")).item()) for _ in range(3)]
    return [*losses, float(layer.weight.sum().item())]


def test_a_step_of_torch_xla_compile_may_have_collectives() -> None:
    first, second = run(compiles_a_step, processes=2).values
    assert first[3] == second[3] and first[:3] != second[:3]


def swallows() -> str:
    """What stops a run is no exception that a function could swallow."""
    try:
        reduce_late(1, 100.0)
    except Exception:
        return "swallowed"
    return "done"


DIFFERENT = "The ranks are in different collectives at the same time."


@pytest.mark.parametrize(
    ("function", "ranks", "words"),
    [
        (
            reduce_on_one,
            3,
            (
                "Rank 0 waited in all_reduce sum of float32[3]",
                "that ranks 1 and 2 never entered: they had already returned.",
            ),
        ),
        (
            reduce_shapes_of_rank,
            3,
            (
                DIFFERENT,
                "Ranks 0, 1: all_reduce sum of float32[3]; rank 2: all_reduce sum of float32[4]",
                "accelerator.pad_across_processes",
            ),
        ),
        (
            two_ways,
            3,
            (DIFFERENT, place_of("reduces", __file__), place_of("meets", __file__)),
        ),
        (
            groups_of_rank,
            4,
            (
                "All ranks waited for each other for 3 s, in collectives of different groups of ranks.",
                "Rank 0 in all_reduce sum of float32[3] among the ranks 0, 1",
                "Pass the same `groups=` on every rank",
            ),
        ),
        (swallows, 2, ("waited 3 s",)),
        (
            compiles_a_collective,
            2,
            ("called a collective inside a torch.compile function", "Leave out fullgraph=True"),
        ),
        (reduces_in_a_thread, 2, ("all_reduce", "float32[2]")),
        (leaves_a_thread, 2, ("all_gather",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_collectives_that_come_to_nothing_are_explained(function: Any, ranks: int, words: tuple[str, ...]) -> None:
    limit = 3.0 if function in (groups_of_rank, swallows) else 60.0
    text = said(failed(function, processes=ranks, collective_timeout=limit, timeout=120.0))
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("function", "args", "values"),
    [(reduce_late, (1, 1.0), [None, None]), pytest.param(a_barrier_of_some, (), [0, 1, 2], marks=LONG)],
    ids=["a rank that comes in time", "a barrier of its own group"],
)
def test_whoever_comes_is_waited_for(function: Any, args: tuple[Any, ...], values: list[Any]) -> None:
    assert run(function, *args, processes=len(values), collective_timeout=30.0).values == values


@pytest.mark.parametrize(
    ("function", "compiles", "recompiles"),
    [
        (reads_without_a_sync, None, 0),
        pytest.param(reads_what_it_sent, 1, None, marks=LONG),
        pytest.param(compiles_a_forward, None, None, marks=LONG),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_several_ranks_compile_what_one_does(function: Any, compiles: int | None, recompiles: int | None) -> None:
    """A read, what was sent to the device and what dynamo runs are no pieces of a step."""
    one, two = (run(function, processes=ranks, timeout=200.0) for ranks in (1, 2))
    assert (one.compiles, one.recompiles) == (two.compiles, two.recompiles)
    assert compiles in (None, one.compiles) and recompiles in (None, one.recompiles)


# -- what is refused -------------------------------------------------------------------------------------------------


def test_ranks_and_spmd_exclude_each_other() -> None:
    text = said(refused(the_world, processes=2, spmd=8))
    assert "-n 2 and --spmd cannot be combined" in text and "Use only one of them" in text
    session.initialise(processes=2)
    assert plan.spmd_devices(session.known_host(), None, None) is None


def test_spmd_as_it_may_be_given() -> None:
    assert [spmd_option(one) for one in (None, True, False, 4)] == [None, ALL_DEVICES, NO_SPMD, 4]
    with pytest.raises(TpuMagicsError, match="--spmd 0 is not valid"):
        spmd_option(0)
    session.initialise(spmd=4)
    assert run(the_world, spmd=NO_SPMD).run.info["plan"]["spmd"] is None
    assert run(the_world, processes=2).run.info["plan"]["spmd"] is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_out_must_be_a_time(seconds: float) -> None:
    with pytest.raises(TpuMagicsError, match="--collective-timeout"):
        Options(collective_timeout=seconds).check()


def test_a_port_that_is_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        text = said(refused(the_world, processes=2))
        assert f"MASTER_PORT is {port}, but that port is in use." in text and "del os.environ['MASTER_PORT']" in text
        assert run(the_world).value["size"][0] == 1  # one rank needs none
    monkeypatch.delenv("MASTER_PORT")
    ports = {plan.meeting_environment()["MASTER_PORT"] for _ in range(3)}
    assert all(0 < int(port) < 65536 for port in ports)


def test_a_port_of_the_persons_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    free = plan.meeting_environment({})["MASTER_PORT"]
    monkeypatch.setenv("MASTER_PORT", free)
    assert plan.meeting_environment()["MASTER_PORT"] == free
    monkeypatch.setenv("MASTER_PORT", "many")
    assert "MASTER_PORT is 'many', which is not a valid port." in said(refused(the_world, processes=2))


def test_a_pytorch_without_gloo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed

    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    text = said(refused(the_world, processes=2))
    assert "2 ranks cannot be rehearsed on this machine." in text and "no gloo" in text and "-n 1" in text
    assert run(the_world).value["size"][0] == 1


def test_the_plan_of_a_rehearsal_gives_the_workers_a_place_to_meet(tmp_path: Path) -> None:
    made = Plan("CPU", 3, 1, "", {})
    assert made.rehearsed and made.spec(1, tmp_path).meeting == tmp_path
    assert Plan("CPU", 1, 1, "", {}).spec(0, tmp_path).meeting is None
    assert Plan("TPU", 8, 1, "", {}).spec(0, tmp_path).meeting is None
