"""The launch on a host with a TPU: recorded hosts, the TPU code of torch_xla, accelerate and transformers as it is, and
XLA:CPU in libtpu's place.

Two fakes stand where a TPU would: `fake_libtpu`, XLA's plugin for the CPU, and `fake_slice`, the network between the
chips: it gives each process the ordinal that torch_xla's own `configure_topology` has told the runtime, and carries
collectives as a rehearsal does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests.host import fake_hosts
from tests.host.fake_hosts import FakeHost
from tests.launch.launching import failed, fake_notebook, run, said
from tpu_magics.backends import pjrt_stand_in
from tpu_magics.backends.torch_xla.rehearse import join
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import inspect_host
from tpu_magics.launch import session, train
from tpu_magics.launch.options import Options
from tpu_magics.launch.strategies import forked
from tpu_magics.panel import page_of_run
from tpu_magics.panel.run_state import SharedView
from tpu_magics.runs.events import Cache, Compile, Memory, Precision, only

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session", "fake_libtpu")]
Build = Callable[[Path], FakeHost]
TOPOLOGY = (
    *("TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "CLOUD_TPU_TASK_ID"),
    *("TPU_PROCESS_PORT", "TPU_PROCESS_ADDRESSES"),
)
# What a TPU VM's metadata server tells a process, here as variables (TPU_SKIP_MDS_QUERY).
METADATA = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_HOST_BOUNDS": "1,1,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def tpu_vm(tmp_path: Path) -> FakeHost:
    return replace(fake_hosts.tpu_vm_v5e(tmp_path), environ=METADATA)


@pytest.fixture
def fake_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    path = pjrt_stand_in.load(pjrt_stand_in.TORCH_XLA)
    monkeypatch.setenv(pjrt_stand_in.LIBRARY_PATH, str(path))


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Build], FakeHost]]:
    """Make this process a notebook on that host."""

    def begin(build: Build) -> FakeHost:
        host = build(tmp_path)
        for name, value in host.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PJRT_DEVICE")

        def inspect() -> Any:
            return inspect_host(environ=os.environ, root=host.root, modules=host.modules, versions=host.versions)

        monkeypatch.setattr(session, "inspect_host", inspect)
        return host

    before = dict(os.environ)
    yield begin
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture
def fake_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between runtime and function: ordinals by what torch_xla told the runtime, and the host's collectives."""
    from tpu_magics.backends.torch_xla import worker

    begin = worker._start

    def start(spec: Any) -> Callable[[int, int], None]:
        original = begin(spec)

        def joined(local_rank: int, local_world_size: int) -> None:
            original(local_rank, local_world_size)
            if local_world_size > 1:
                ordinal = int(os.environ["CLOUD_TPU_TASK_ID"])
                join.join(replace(spec, device="CPU", meeting=tmp_path), ordinal)

        return joined

    monkeypatch.setattr(worker, "_start", start)


# -- what the function sees --------------------------------------------------------------------------------------------
def what_it_is() -> dict[str, Any]:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr
    from accelerate.utils import is_torch_xla_available

    total = xm.all_reduce("sum", torch.ones((), device=torch_xla.device()))
    torch_xla.sync()
    return {
        "kind": (xr.device_type(), xm.xla_device_hw(torch_xla.device()), is_torch_xla_available(check_is_tpu=True)),
        "rank": (xr.global_ordinal(), xr.world_size()),
        "total": float(total),
        "topology": {name: os.environ[name] for name in TOPOLOGY if name in os.environ},
        "local": os.environ.get("LOCAL_RANK"),
    }


def test_one_chip_of_colab(on: Callable[[Build], FakeHost], tmp_path: Path) -> None:
    on(fake_hosts.colab_v5e_1)
    session.initialise(cache=str(tmp_path / "cache"))
    result = run(what_it_is)
    told = result.value
    assert told["kind"] == ("TPU", "TPU", True) and told["rank"] == (0, 1) and told["total"] == 1
    # Not the bounds 2,2,1 of Colab's image, with which torch_xla's launcher would wait for three more chips.
    chip = {"TPU_VISIBLE_CHIPS": "0", "TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}
    assert told["topology"] == chip and told["local"] is None
    assert result.run.info["plan"]["device"] == "TPU"
    assert page_of_run.where(SharedView(result.run).anew()) == "1 rank on TPU"
    assert not only(result.run.events(), Memory) or all(m.hbm_used is None for m in only(result.run.events(), Memory))
    [cache] = {event.path for event in only(result.run.events(), Cache)}
    assert cache == str(tmp_path / "cache") and not any(event.text for event in only(result.run.events(), Cache))


@pytest.mark.parametrize(("build", "chips"), [(tpu_vm, 4), (fake_hosts.kaggle_v5e_8, 8)])
def test_each_chip_has_its_rank(
    on: Callable[[Build], FakeHost], build: Build, chips: int, fake_slice: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(build)
    if build is not tpu_vm:  # Kaggle's metadata server has the rest
        for name, value in METADATA.items():
            monkeypatch.setenv(name, os.environ.get(name, value))
    session.initialise()
    result = run(what_it_is)
    assert [told["rank"] for told in result.values] == [(rank, chips) for rank in range(chips)]
    assert {told["total"] for told in result.values} == {chips}
    for rank, told in enumerate(result.values):
        topology = told["topology"]
        assert (topology["TPU_VISIBLE_CHIPS"], topology["CLOUD_TPU_TASK_ID"]) == (str(rank), str(rank))
        assert topology["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
        assert topology["TPU_PROCESS_ADDRESSES"].count("localhost:") == chips


LAUNCHERS = {
    "notebook_launcher": """
from accelerate import Accelerator, notebook_launcher
def train(flags):
    accelerator = Accelerator()
    total = accelerator.gather(torch.ones(1, device=accelerator.device)).sum()
    return flags, (accelerator.process_index, accelerator.num_processes), float(total), os.environ.get("XLA_USE_BF16")
notebook_launcher(train, ("f",), num_processes=CHIPS, mixed_precision="bf16")
""",
    "xmp.spawn": """
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
def train(index, flags):
    total = xm.all_reduce("sum", torch.ones((), device=torch_xla.device()))
    return flags, (index, xr.world_size()), float(total), os.environ.get("XLA_USE_BF16")
xmp.spawn(train, args=("f",), start_method="fork")
""",
}
LAUNCHERS["torch_xla.launch"] = LAUNCHERS["xmp.spawn"].replace(
    'xmp.spawn(train, args=("f",), start_method="fork")', 'torch_xla.launch(train, args=("f",))'
)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("build", "chips"), [(fake_hosts.colab_v5e_1, 1), (tpu_vm, 4)])
def test_a_cell_with_a_launcher(
    on: Callable[[Build], FakeHost], build: Build, chips: int, launcher: str, fake_slice: None
) -> None:
    """Cells as people have them: nothing of them is changed."""
    notebook = fake_notebook()
    notebook.names.update(os=os, torch=torch, CHIPS=chips)
    on(build)
    session.initialise()
    cell = train.CellSource(f"\n{LAUNCHERS[launcher]}", "<cell>")
    result = train.train_cell(cell, (), Options(hoist="off", timeout=60.0))
    assert result is not None
    bf16 = "1" if launcher == "notebook_launcher" else None
    assert result.values == [("f", (rank, chips), float(chips), bf16) for rank in range(chips)]


# -- programs ----------------------------------------------------------------------------------------------------------
SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def bert() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=16, num_labels=2)
    return transformers.BertForSequenceClassification(config)


def with_trainer(model: Any, folder: Path) -> dict[str, Any]:
    """Each epoch is evaluated and saved, the best model is loaded at the end; in bf16."""
    import transformers

    rows = [{"input_ids": torch.full((8,), n % 32), "labels": n % 2} for n in range(64)]
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        eval_accumulation_steps=1,  # else they grow on the device
        bf16=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:16])
    trainer.train()
    return {"steps": trainer.state.global_step, "bf16": os.environ.get("XLA_USE_BF16"), **trainer.evaluate()}


def unexpected(result: Any) -> list[str]:
    return [event.text for event in only(result.run.events(), Compile) if event.recompile and not event.expected]


@pytest.mark.parametrize(
    ("build", "ranks"), [(fake_hosts.colab_v5e_1, 1), pytest.param(tpu_vm, 4, marks=pytest.mark.long)]
)
def test_trainer(on: Callable[[Build], FakeHost], build: Build, ranks: int, fake_slice: None, tmp_path: Path) -> None:
    on(build)
    session.initialise()
    model = bert()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = run(with_trainer, model, tmp_path / "out", timeout=250)
    assert [told["bf16"] for told in result.values] == ["1"] * ranks and not unexpected(result)
    assert {told["steps"] for told in result.values} == {32 // ranks}
    assert len({told["eval_loss"] for told in result.values}) == 1
    assert {event.share for event in only(result.run.events("precision"), Precision) if event.ops} == {1.0}
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
    saved = sorted((tmp_path / "out").glob("checkpoint-*"))
    assert len(saved) == 2 and all((one / "model.safetensors").is_file() for one in saved)


def with_accelerate(folder: Path) -> dict[str, Any]:
    """What accelerate does otherwise on a TPU: local rank, gathered objects, a saved state, values of all ranks."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        seen += accelerator.gather_for_metrics(batch[:, 0]).cpu().tolist()
    accelerator.wait_for_everyone()
    accelerator.save_state(str(folder))
    accelerator.save(accelerator.get_state_dict(model), str(folder / "weights.pt"))
    return {
        "rank": (accelerator.process_index, accelerator.local_process_index, accelerator.num_processes),
        "seen": sorted(seen),
        "weights": [value.detach().cpu().tolist() for value in accelerator.unwrap_model(model).parameters()],
    }


@pytest.mark.parametrize(("build", "ranks"), [(fake_hosts.colab_v5e_1, 1), (tpu_vm, 4)])
def test_accelerate(
    on: Callable[[Build], FakeHost], build: Build, ranks: int, fake_slice: None, tmp_path: Path
) -> None:
    on(build)
    session.initialise()
    told = run(with_accelerate, tmp_path / "state").values
    assert [each["rank"] for each in told] == [(rank, rank, ranks) for rank in range(ranks)]
    assert [each["seen"] for each in told] == [[4.0 * n for n in range(16)]] * ranks
    assert len({json.dumps(each["weights"]) for each in told}) == 1
    kept = torch.load(tmp_path / "state" / "weights.pt", weights_only=True)
    assert [value.tolist() for value in kept.values()] == told[0]["weights"]


# -- what goes wrong there ---------------------------------------------------------------------------------------------
def test_processes_that_do_not_find_each_other(on: Callable[[Build], FakeHost]) -> None:
    """Without the network between the chips each process is rank 0 of one."""
    on(tpu_vm)
    session.initialise()
    text = said(failed(what_it_is))
    assert "The workers do not agree on their ranks" in text and "4 have rank 0" in text
    assert "TPU_HOST_BOUNDS=1,1,1" in text


def raises_on_one_rank() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    if xr.global_ordinal() == 2:
        raise ValueError("no such file")
    xm.rendezvous("all are here")


def test_an_error_of_one_rank(on: Callable[[Build], FakeHost], fake_slice: None) -> None:
    on(tpu_vm)
    session.initialise()
    text = said(failed(raises_on_one_rank))
    assert "Rank 2 raised ValueError: no such file" in text


def test_a_tpu_that_another_notebook_uses(on: Callable[[Build], FakeHost]) -> None:
    host = on(tpu_vm)
    session.initialise()
    fake_hosts.add_process(host.root, 4242, ("python3", "-m", "ipykernel_launcher"), ("dev/vfio/0",))
    with pytest.raises(TpuMagicsError, match="The TPU is in use by process 4242"):
        run(what_it_is)


BUSY = "TPU initialization failed: open(/dev/vfio/0): Device or resource busy"


@pytest.mark.parametrize("times", [1, 1000])
def test_a_tpu_that_is_busy_for_a_moment(
    on: Callable[[Build], FakeHost], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu's words, as recorded; the process that used the TPU has just ended."""
    from tpu_magics.backends.torch_xla import worker

    tries, begin = tmp_path / "tries", worker._start_one_chip

    def start(*numbers: int) -> None:
        with tries.open("a") as file:
            file.write("x")
        if tries.stat().st_size <= times:
            raise RuntimeError(BUSY)
        begin(*numbers)

    monkeypatch.setattr(worker, "_start_one_chip", start)
    monkeypatch.setattr(forked, "BUSY_PAUSE", 0.01)
    monkeypatch.setattr(forked, "BUSY_PATIENCE", 1.0)
    notebook = fake_notebook()
    on(fake_hosts.colab_v5e_1)
    session.initialise()
    if times == 1:
        assert run(what_it_is).value["total"] == 1
        assert [line for line in notebook.lines if "busy" in line] == [
            "The TPU is still busy (the process that used it may have just ended): trying again."
        ]
    else:
        assert "/dev/vfio/0" in said(failed(what_it_is))
