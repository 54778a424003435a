"""Runs in which XLA:CPU is in a TPU's place: what libraries take the device for, and what they do only there."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests.host import fake_hosts
from tests.launch.launching import failed, fake_notebook, run, said
from tpu_magics.backends import pjrt_stand_in
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import inspect_host
from tpu_magics.launch import session
from tpu_magics.magics import init
from tpu_magics.panel import page_of_run
from tpu_magics.panel.host import host_table
from tpu_magics.panel.page_sections import hbm_memory
from tpu_magics.panel.run_state import SharedView
from tpu_magics.runs.events import Compile, Precision, only

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


# -- in a run ----------------------------------------------------------------------------------------------------------
def what_it_is() -> dict[str, Any]:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from accelerate.utils import is_torch_xla_available

    x = torch.arange(6.0, device=torch_xla.device())
    total = xm.all_reduce("sum", x.sum())
    torch_xla.sync()
    return {
        "kind": (xr.device_type(), xm.xla_device_hw(torch_xla.device()), is_torch_xla_available(check_is_tpu=True)),
        "rank": (xr.global_ordinal(), xr.world_size(), xr.local_ordinal()),
        "devices": xr.global_runtime_device_count(),
        "total": float(total),
        "variables": {name: value for name, value in os.environ.items() if name in ("PJRT_DEVICE", "LOCAL_RANK")},
    }


@pytest.mark.parametrize(("ranks", "spmd"), [(1, None), (2, None), (1, 4)])
def test_libraries_take_it_for_a_tpu(ranks: int, spmd: int | None) -> None:
    from accelerate.utils import is_torch_xla_available

    assert is_torch_xla_available(check_is_tpu=True) is False  # which accelerate keeps, also across the fork
    before = dict(os.environ)
    session.initialise(tpu_branch=True, processes=ranks if spmd is None else None, spmd=spmd)
    result = run(what_it_is, spmd=spmd)
    for rank, told in enumerate(result.values):
        assert told["kind"] == ("TPU", "TPU", True) and told["rank"] == (rank, ranks, rank)
        assert told["devices"] == (spmd or ranks) and told["total"] == 15.0 * ranks
        assert told["variables"] == {"PJRT_DEVICE": "TPU"}
        assert result.run.log(rank) == ""  # neither the plugin nor torch_xla greets
    assert len(result.values) == ranks and dict(os.environ) == before
    plan = result.run.info["plan"]
    assert (plan["device"], plan["branch"]) == ("CPU", "TPU")
    view = SharedView(result.run).anew()
    assert page_of_run.where(view).endswith(" on XLA:CPU in a TPU's place") and hbm_memory(view) == "n/a on XLA:CPU"


def where_chips_are() -> Any:
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    chips = xr.global_runtime_device_attributes()
    assert {frozenset(chip) for chip in chips} == {frozenset(("name", "coords", "core_on_chip", "num_cores"))}
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 4), axis_names=("data", "model")) if xr.is_spmd() else None
    own = xr.runtime_device_attributes("xla:0")
    return [chip["coords"][:2] for chip in chips], own["coords"], None if mesh is None else mesh.get_logical_mesh()


def test_chips_have_places() -> None:
    session.initialise(tpu_branch=True)
    places, _, mesh = run(where_chips_are, spmd=8).value
    assert places == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2], [0, 3], [1, 3]]
    assert mesh.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]  # rows along the longer direction
    ranks = run(where_chips_are, workers=2).values
    assert [own for _, own, _ in ranks] == [[0, 0, 0], [0, 1, 0]]


def computes() -> float:
    return float(torch.ones(3, device="xla").sum())


@pytest.mark.parametrize("branch", [True, False])
def test_an_option_of_libtpus_compiler(branch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA:CPU would refuse every compile."""
    monkeypatch.setenv("ENABLE_COLLECTIVE_MATMUL_IN_MP", "1")
    session.initialise(tpu_branch=branch)
    assert run(computes).value == 3
    assert os.environ["ENABLE_COLLECTIVE_MATMUL_IN_MP"] == "1"


def trains_in_bf16(model: Any) -> str:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return os.environ.get("XLA_USE_BF16", "")


@pytest.mark.parametrize("branch", [True, False])
def test_accelerates_bf16_is_in_the_graphs(branch: bool) -> None:
    """There by accelerate itself, in a plain rehearsal by torch/precision_request.py."""
    session.initialise(tpu_branch=branch)
    result = run(trains_in_bf16, torch.nn.Linear(4, 4))
    assert result.value == "1"
    assert {event.share for event in only(result.run.events("precision"), Precision) if event.ops} == {1.0}


def profiles(name: str) -> None:
    import torch_xla.debug.profiler as xp

    getattr(xp, name)("localhost:9012")


@pytest.mark.parametrize("name", ["start_server", "start_trace", "trace"])
def test_the_profiler_which_would_crash_is_refused(name: str) -> None:
    session.initialise(tpu_branch=True)
    text = said(failed(profiles, name))
    assert "profiler" in text and "--no-tpu-branch" in text


def counts_as_on_a_tpu(steps: int) -> int:
    """Accelerate's micro-batches: on a TPU each update begins with a sync."""
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    from accelerate import Accelerator

    accelerator = Accelerator()
    x = torch.ones(2, device=torch_xla.device())
    for _ in range(steps):
        x = x * 2
        accelerator.gradient_state._set_sync_gradients(True)
    xm.wait_device_ops()
    return int((met.metric_data("ExecuteTime") or [0])[0])


def test_accelerate_ends_a_step_only_there() -> None:
    executed = []
    for branch in (True, False):
        session.initialise(tpu_branch=branch)
        executed.append(run(counts_as_on_a_tpu, 3).value)
    assert executed == [3, 0]


def accumulates_over_lengths(model: Any) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(4, length, 4) for length in (3, 3, 5, 5, 7, 7)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):  # on a TPU it syncs before the last micro-batch: the batch is there already
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("branch", [True, False])
def test_a_batch_that_came_before_a_sync_is_known_as_the_cause(branch: bool) -> None:
    session.initialise(tpu_branch=branch)
    result = run(accumulates_over_lengths, torch.nn.Linear(4, 4))
    recompiles = [event for event in only(result.run.events(), Compile) if event.recompile]
    assert len(recompiles) == 5 and {event.cause for event in recompiles[1:]} == {"input-shape"}
    assert all("float32[4,7,4]" in event.text for event in recompiles[-2:])


def shows_little() -> Any:
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.profiler as xp

    with xp.Trace("a step"):  # a name for the profiler, which needs none
        return xm.xla_device_kind()


def test_names_for_a_profiler_need_none() -> None:
    session.initialise(tpu_branch=True)
    assert run(shows_little).value == "cpu"


# -- where it cannot be ------------------------------------------------------------------------------------------------
def test_a_host_with_a_tpu_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = fake_notebook()
    host = inspect_host(**fake_hosts.tpu_vm_v5e(tmp_path).arguments())
    monkeypatch.setattr(session, "inspect_host", lambda: host)
    monkeypatch.setattr(pjrt_stand_in, "load", lambda _framework: pytest.fail("it is never loaded there"))
    assert session.initialise(tpu_branch=True).branch == ""
    assert notebook.lines == ["--tpu-branch has no effect: this host has a TPU."]


@pytest.mark.parametrize("fault", ["missing", "changed", "version"])
def test_where_the_plugin_does_not_fit_the_plain_road_goes_on(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = fake_notebook()
    version, distribution = metadata.version, metadata.distribution

    def found(name: str) -> metadata.Distribution:
        if name == pjrt_stand_in.PACKAGE.name:
            raise metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(pjrt_stand_in, "_replacement", [])
    if fault == "missing":
        monkeypatch.setattr(metadata, "distribution", found)
    elif fault == "changed":
        monkeypatch.setattr(pjrt_stand_in, "_digest", lambda _path: "0" * 64)
    else:
        monkeypatch.setattr(metadata, "version", lambda name: "2.8.0" if name == "torch_xla" else version(name))
    host = session.initialise(tpu_branch=True)
    [line] = notebook.lines
    assert line.startswith("Libraries do not take their TPU branch in this rehearsal.")
    said_why = {
        "missing": "is not installed",
        "changed": "is not the one that was tested",
        "version": "torch_xla is 2.8.0",
    }
    assert said_why[fault] in line and host.branch == ""
    assert run(what_it_is).value["kind"] == ("CPU", "CPU", False)


def test_the_table_says_it() -> None:
    host = session.initialise(tpu_branch=True)
    rows = dict(row.cells for row in host_table(host).rows)
    assert rows["Device"] == "CPU in a TPU's place (libraries take their TPU branch): 1 worker"
    rows = dict(row.cells for row in host_table(session.initialise(tpu_branch=True, spmd=4), spmd=4).rows)
    assert rows["Device"].startswith("CPU in a TPU's place (libraries take their TPU branch): 1 worker (SPMD), which")


def of_the_tpu() -> tuple[Any, ...]:
    import torch_xla.runtime as xr
    from torch_xla._internal import tpu

    kind = tpu.version(), tpu.get_tpu_type(), tpu.num_available_chips()
    return kind, xr.world_size(), xr.host_index(), xr.get_master_ip()


@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    [("v5e-4", (5, "v5litepod", 4), 4), ("v4-8", (4, "v4", 4), 4), ("v5p-8", (5, "v5p", 4), 4)],
)
def test_a_host_that_is_rehearsed(name: str, kind: tuple[int, str, int], ranks: int) -> None:
    notebook = fake_notebook()
    host = init.init(stands_for=name)
    result = run(of_the_tpu)
    assert result.values == [(kind, ranks, 0, "localhost")] * ranks and notebook.lines == []
    device = dict(row.cells for row in host_table(host, session.current.processes).rows)["Device"]
    assert device.startswith("CPU in the place of a ") and device.endswith(f"a rehearsal of {ranks} ranks")
    init.init(processes=1)
    assert run(of_the_tpu).value == ((5, "v5litepod", 1), 1, 0, "localhost")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stands_for": "v5e-16"}, "4 hosts with 4 chips each"),
        ({"stands_for": "v99"}, 'There is no TPU named "v99"'),
        ({"stands_for": "v5e-8", "hosts": "ray"}, "--as is not supported together with --hosts"),
        ({"stands_for": "v5e-8", "framework": "tensorflow"}, "--as is not supported for TensorFlow"),
        ({"stands_for": "v5e-7"}, "The nearest: v5e-4 and v5e-8"),
        ({"stands_for": "v5e-8", "processes": 2}, "--as v5litepod-8 is not supported together with -n 2"),
        ({"stands_for": "v5e-8", "spmd": 4}, "--as v5litepod-8 is not supported together with --spmd 4"),
        ({"stands_for": "v5e-8", "tpu_branch": False}, "together with --no-tpu-branch"),
    ],
)
def test_what_cannot_be_rehearsed_so(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TpuMagicsError) as error:
        init.init(**options)
    assert words in str(error.value)


def test_with_other_hosts_it_has_no_effect_and_tensorflow_refuses_it() -> None:
    notebook = fake_notebook()
    assert session._takes_tpus_place(inspect_host(), alone=False, asked=True) is False
    assert notebook.lines == ["--tpu-branch has no effect: it is for runs on this host, without --hosts."]
    with pytest.raises(TpuMagicsError, match="--tpu-branch is not supported for TensorFlow"):
        session.initialise(framework="tensorflow", tpu_branch=True)
