"""What a run will do on each kind of host, and whether memory and disk can take it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.host import fake_hosts
from tests.launch.launching import error_of, fake_notebook, refused, run, said
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, inspect_host
from tpu_magics.launch import plan, session
from tpu_magics.launch.options import Options, made_options
from tpu_magics.launch.plan import Plan
from tpu_magics.runs.reader import list_runs

pytestmark = pytest.mark.usefixtures("fresh_session")


def inspect(host: fake_hosts.FakeHost) -> Host:
    return inspect_host(**host.arguments())  # type: ignore[arg-type]


def planned(host: Host, asked: int | None = None, **options: Any) -> Plan:
    return plan.make_plan(host, Options(**options), "", plan.count_workers(host, asked))


# -- how many workers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "workers", "replicas", "ranks"),
    [
        (fake_hosts.plain, 1, 1, 1),
        (fake_hosts.colab_cpu, 1, 1, 1),
        (fake_hosts.colab_v5e_1, 1, 1, 1),
        (fake_hosts.kaggle_v5e_8, 8, 1, 8),
        (fake_hosts.tpu_vm_v2, 4, 2, 8),
        (fake_hosts.tpu_vm_v3, 4, 2, 8),
        (fake_hosts.tpu_vm_v4, 4, 1, 4),
        (fake_hosts.tpu_vm_v5p, 4, 1, 4),
        (fake_hosts.tpu_vm_v5e, 4, 1, 4),
        (fake_hosts.tpu_vm_v6e, 4, 1, 4),
        (fake_hosts.gke, 4, 1, 4),
    ],
)
def test_one_worker_for_each_chip(
    tmp_path: Path, build: Callable[[Path], fake_hosts.FakeHost], workers: int, replicas: int, ranks: int
) -> None:
    host = inspect(build(tmp_path))
    made = planned(host)
    assert (made.workers, made.replicas, made.ranks) == (workers, replicas, ranks)
    assert planned(host, ranks) == made
    specs = [made.spec(index) for index in range(workers)]
    assert [spec.index for spec in specs] == list(range(workers))
    assert {(spec.count, spec.device, spec.replicas) for spec in specs} == {(workers, host.device, replicas)}


def test_one_worker_of_several_uses_one_device(tmp_path: Path) -> None:
    for build in (fake_hosts.tpu_vm_v3, fake_hosts.tpu_vm_v4, fake_hosts.kaggle_v5e_8):
        made = planned(inspect(build(tmp_path / build.__name__)), 1)
        assert (made.workers, made.replicas, made.ranks) == (1, 1, 1)


@pytest.mark.parametrize("asked", [2, 3, 7, 16])
def test_numbers_that_cannot_be_had(tmp_path: Path, asked: int) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        plan.count_workers(inspect(fake_hosts.tpu_vm_v2(tmp_path / "v2")), asked)
    assert f"-n {asked} is not supported on this host: it has 4 TPU chips." in caught.value.what
    assert "Omit -n for 8 ranks, or use -n 1." in caught.value.todo
    made = planned(inspect(fake_hosts.plain(tmp_path / "plain")), asked)
    assert (made.workers, made.rehearsed) == (asked, True)


# -- the workers' environment -----------------------------------------------------------------------------------------


@pytest.mark.process
def test_repairs_are_made_in_the_workers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaggle's variables, seen by a real worker."""
    host = fake_hosts.kaggle_v5e_8(tmp_path)
    made = planned(inspect(host))
    assert dict(made.environment) == {"TPU_PROCESS_ADDRESSES": None, "CLOUD_TPU_TASK_ID": None}
    for name in made.environment:
        monkeypatch.setenv(name, host.environ[name])
    before = dict(os.environ)
    here = plan.make_plan
    monkeypatch.setattr(plan, "make_plan", lambda *args: replace(here(*args), environment=made.environment))
    inside = run(lambda: dict(os.environ)).value
    assert not set(made.environment) & set(inside)
    assert dict(os.environ) == before


def test_a_plain_host_changes_no_variable(tmp_path: Path) -> None:
    for build in (fake_hosts.plain, fake_hosts.colab_v5e_1, fake_hosts.tpu_vm_v5e, fake_hosts.gke):
        assert planned(inspect(build(tmp_path / build.__name__))).environment == {}


def test_the_notebook_is_told_what_to_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for build, device in ((fake_hosts.plain, "CPU"), (fake_hosts.tpu_vm_v5e, "TPU")):
        monkeypatch.delenv("PJRT_DEVICE", raising=False)
        host = inspect(build(tmp_path / device))
        monkeypatch.setattr(session, "inspect_host", lambda host=host: host)
        assert session.initialise(tpu_branch=False) is host and os.environ["PJRT_DEVICE"] == device
    monkeypatch.setenv("PJRT_DEVICE", "CPU")


@pytest.mark.process
def test_where_a_tpu_is_chosen_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = inspect(fake_hosts.colab_cpu(tmp_path))
    monkeypatch.setattr(session, "inspect_host", lambda: host)
    notebook = fake_notebook()
    run(int)
    run(int)
    told = [line for line in notebook.lines if "No TPU in this" in line]
    assert len(told) == 1 and host.environment.menu in told[0]


@pytest.mark.process
def test_defaults_of_the_session_hold_and_options_win(monkeypatch: pytest.MonkeyPatch) -> None:
    session.initialise(precision="bf16")
    shown = lambda: os.environ.get("XLA_USE_BF16", "unset")  # noqa: E731
    assert run(shown).value == "1"
    assert run(shown, precision="fp32").value == "unset"
    assert run(shown).run.info["plan"]["precision"] == "bf16"
    with pytest.raises(TpuMagicsError, match="--precision half"):
        session.initialise(precision="half")
    with pytest.raises(TpuMagicsError, match="-n 9 and --spmd"):
        session.initialise(processes=9, spmd=8)
    with pytest.raises(TpuMagicsError, match="-n 0"):
        session.initialise(processes=0)
    assert session.current.precision == "bf16"


@pytest.mark.process
def test_the_plan_is_recorded() -> None:
    result = run(int, timeout=33.0, precision="bf16")
    assert result.run.info["plan"] == {
        "device": "CPU",
        "branch": session.known_host().branch,
        "workers": 1,
        "replicas": 1,
        "precision": "bf16",
        "steps": None,
        "timeout": 33.0,
        "max_recompiles": None,
        "cache": "",
        "checkpoints": None,
        "rehearsed": False,
        "spmd": None,
        "collective_timeout": None,
        "background": False,
    }
    assert result.run.info["host"]["device"] == "CPU" and result.run.info["versions"]["torch"]


# -- what must fit ----------------------------------------------------------------------------------------------------

GB = 10**9


@pytest.mark.parametrize(
    ("device", "workers", "replicas", "copies"),
    [("CPU", 1, 1, 2), ("CPU", 4, 1, 9), ("TPU", 8, 1, 9), ("TPU", 4, 2, 9)],
)
def test_the_forecast_counts_copies(device: str, workers: int, replicas: int, copies: int) -> None:
    expected = plan.forecast(Plan(device, workers, replicas, "", {}), 3 * GB)
    assert expected.copies == copies
    assert expected.needed == workers * plan.PER_WORKER + copies * 3 * GB
    assert f"{copies} x 3,000 MB for copies of the models" in expected.text()
    saving = plan.forecast(Plan(device, workers, replicas, "", {}), 3 * GB, saves=True)
    assert saving.copies == copies + 1


def test_a_run_that_does_not_fit_in_memory_is_refused_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hosts.add_memory(tmp_path, total_kb=4_000_000, available_kb=1_500_000)
    small = Plan("CPU", 1, 1, "", {})
    plan.require_memory(small, GB // 2, False, tmp_path)
    plan.require_memory(small, GB, True, tmp_path)  # --force
    with pytest.raises(TpuMagicsError) as caught:
        plan.require_memory(small, GB, False, tmp_path)
    needed = plan.mb(2 * GB + plan.PER_WORKER)
    assert caught.value.what == f"Not enough host memory (estimate): the run needs {needed}, but 1,536 MB are free."
    assert "2 x 1,000 MB for copies of the models" in caught.value.why and "--force" in caught.value.todo
    with pytest.raises(TpuMagicsError) as caught:
        plan.require_memory(replace(small, workers=8), GB, False, tmp_path)
    expected = f"8 x {plan.mb(plan.PER_WORKER)} for the workers and 17 x 1,000 MB for copies of the models"
    assert expected in caught.value.why and "-n 1" in caught.value.todo
    plan.require_memory(small, GB, False, tmp_path / "not-there")  # not known is no reason to refuse


def test_memory_is_asked_for_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
    """A model that is larger than this machine, as far as its parameters say."""
    monkeypatch.setattr(session.current.backend.models, "model_bytes", lambda _model: 10**15)
    model = torch.nn.Linear(2, 2)
    error = refused(len, [model])
    assert "Not enough host memory (estimate): the run needs 2,000,000" in error.what
    assert not runs.exists()


@pytest.mark.process
def test_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_disk", lambda _folder: 100)
    model = torch.nn.Linear(8, 8)
    error = refused(len, [model])
    assert "Not enough disk space: the trained weights take 0 MB, but 0 MB are free" in error.what
    assert "TPU_MAGICS_RUNS" in error.todo
    assert list_runs()[0].status == "refused" and list_runs()[0].info["failure"]["what"] == error.what
    assert session.current.active_run is None
    assert run(len, [model], force=True).value == 1


def test_bytes_for_people() -> None:
    assert [plan.mb(count) for count in (75_000_000, 9_999_000_000, 12_500_000_000)] == ["75 MB", "9,999 MB", "12.5 GB"]
    assert said(TpuMagicsError("a", "b", "c")) == "a\nWhy: b\nWhat to do: c"


@pytest.mark.parametrize(
    "options",
    [
        *({"processes": "2"}, {"processes": True}, {"processes": 1.5}, {"steps": 1.5}, {"timeout": "10s"}),
        *({"preflight": 8}, {"tensorboard": 3}, {"save_every": 1.5}, {"spmd": "2"}),
        *({"background": "yes"}, {"keep_partial": "no"}, {"retries": "2"}, {"run_name": 5}, {"max_recompiles": "a"}),
    ],
    ids=str,
)
def test_a_keyword_of_another_type_is_named(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    error = error_of(lambda: made_options(**options))
    assert f"{name}={value!r} is not valid." in error.what and "or omit it" in error.todo


def test_numbers_of_numpy_and_names_that_are_near() -> None:
    assert type(made_options(steps=np.int64(2)).steps) is int
    assert "has no option stepz; did you mean steps?" in error_of(lambda: made_options(stepz=1)).what
