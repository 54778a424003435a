"""One worker that drives eight virtual devices, through the launcher: it trains as one device does, is recorded as
ever, and says what is wrong with meshes and batches."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from tests.launch.launching import digest, failed, of, run, said  # noqa: E402
from tpu_magics.launch import session, train  # noqa: E402
from tpu_magics.launch.options import Options  # noqa: E402
from tpu_magics.launch.results import TrainResult  # noqa: E402
from tpu_magics.runs.events import Batch, Compile, Mesh, Precision, Start, Times, Warned, only  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
DEVICES = 8
STEPS = 6


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def batches(size: int = 16, count: int = STEPS) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 8, generator=generator) for _ in range(count)]


def difference(left: Any, right: Any) -> float:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def mesh_of(result: TrainResult) -> Mesh:
    """The record that holds at the end."""
    return only(result.run.events(), Mesh)[-1]


def counted(result: TrainResult) -> None:
    """Every compile is recorded, with all that is known of it."""
    found = only(result.run.events(), Compile)
    assert len(found) == result.compiles
    assert all(event.graph and event.seconds and event.memory is not None for event in found)


# -- a plain loop -----------------------------------------------------------------------------------------------------


def by_hand(model: Any, data: list[Any], sharding: str) -> dict[str, Any]:
    """The loop of torch_xla's own guide. `sharding`: how the batches are split over the mesh, "" for not at all."""
    mesh, device = xs.get_global_mesh(), torch_xla.device()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if "loader" in sharding:
        spec = xs.ShardingSpec(mesh, ("data", None), minibatch="minibatch" in sharding)
        loader = pl.MpDeviceLoader(data, device, input_sharding=spec)
    else:
        loader = data
    losses = []
    for batch in loader:
        x = batch.to(device)
        if sharding == "marked":
            xs.mark_sharding(x, mesh, ("data", None))
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    counter = torch_xla._XLAC._xla_counter_value("UncachedCompile")
    return {"losses": losses, "world": (xr.global_ordinal(), xr.world_size()), "spmd": xr.is_spmd(), "counter": counter}


@pytest.mark.parametrize(
    "sharding", [*(pytest.param(one, marks=pytest.mark.long) for one in ("marked", "loader")), "loader minibatch"]
)
def test_eight_devices_train_as_one_does(sharding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")  # the partitioner's warnings stay out of the output all the same
    alone, together = net(), net()
    plain = run(by_hand, alone, batches(), "")
    expected = plain.value
    result = run(by_hand, together, batches(), sharding, spmd=DEVICES)
    assert result.value["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert difference(alone, together) < 1e-5 and difference(together, net()) > 0.01
    assert result.value["spmd"] and not expected["spmd"]
    assert result.value["world"] == (0, 1) and len(result.values) == 1
    assert result.steps == STEPS and result.compiles == result.value["counter"]
    counted(result)
    mesh = mesh_of(result)
    assert (mesh.shape, mesh.axes, mesh.devices, mesh.virtual) == ((DEVICES, 1), ("data", "model"), DEVICES, True)
    assert (mesh.sharded, mesh.replicated, mesh.sharded_bytes, mesh.replicated_bytes) == (0, 4, 0, 4 * 212)
    assert only(plain.run.events(), Mesh) == []
    assert [event.code for event in only(result.run.events(), Warned)] == []
    assert (result.run.path / "rank-0.log").read_text() == ""


def test_a_batch_that_the_devices_do_not_divide_is_padded() -> None:
    alone, together = net(), net()
    expected = run(by_hand, alone, batches(10), "").value
    result = run(by_hand, together, batches(10), "marked", spmd=DEVICES)
    assert result.value["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    assert difference(alone, together) < 1e-5


def test_one_device_is_a_mesh_too() -> None:
    result = run(by_hand, net(), batches(), "marked", spmd=1)
    assert (mesh_of(result).shape, mesh_of(result).sharded, mesh_of(result).replicated) == ((1, 1), 0, 4)


def test_it_is_told_where_nothing_is_split() -> None:
    result = run(by_hand, net(), batches(), "", spmd=DEVICES)
    (warned,) = [event for event in only(result.run.events(), Warned) if event.code == "nothing-split"]
    assert "Nothing was sharded over the 8 devices" in warned.text and "xs.mark_sharding" in warned.text


def lengths(spmd: bool, read: bool = False) -> None:
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(8):
        ids = torch.randint(0, 50, (16, 5 + step % 3)).to(device)
        if spmd:
            xs.mark_sharding(ids, xs.get_global_mesh(), ("data", None))
        optimizer.zero_grad()
        loss = model(ids).pow(2).mean()
        loss.backward()
        if read and step == 6:
            loss.item()
        optimizer.step()
        torch_xla.sync()


def test_compiles_have_the_causes_that_they_have_on_one_device() -> None:
    def told(result: TrainResult) -> list[tuple[Any, ...]]:
        found = only(result.run.events(), Compile)
        return [(event.site.line, event.step, event.nth, event.cause, event.text, event.trigger) for event in found]

    alone, together = run(lengths, False), run(lengths, True, spmd=DEVICES)
    counted(together)
    assert together.compiles == alone.compiles and together.recompiles == alone.recompiles
    assert told(together) == told(alone) and {"optimizer-state", "input-shape"} <= {row[3] for row in told(alone)}
    names = {(one.name, one.shape) for event in only(together.run.events(), Compile) for one in event.inputs}
    assert {("ids", (16, 5)), ("ids", (16, 6)), ("ids", (16, 7))} <= names
    assert only(together.run.events(), Times)[-1].executing


def test_a_read_in_the_middle_of_a_step_is_found() -> None:
    """Under SPMD torch_xla keeps what a read has run, so that the rest of the step is another graph."""
    result = run(lengths, True, True, spmd=DEVICES)
    *_, of_read, of_rest = only(result.run.events(), Compile)
    assert (of_read.trigger, of_read.site.code) == ("read", "loss.item()")
    assert (of_rest.trigger, of_rest.cause, of_rest.step) == ("sync", "early-read", 6)
    counted(result)


# -- what lies on the devices -----------------------------------------------------------------------------------------


def splits_parameters(later: bool) -> None:
    """A model of its own, its first part frozen. Its weights are split one after the other; of the others it is said
    that they are whole, or XLA may split them as well."""
    mesh = xs.get_global_mesh()
    model = net().to("xla")
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    xs.mark_sharding(model[0].weight, mesh, ("data", None))
    xs.mark_sharding(model[2].weight, mesh, (None, None))
    xs.mark_sharding(model[2].bias, mesh, (None,))
    for step, batch in enumerate(batches()):
        if later and step == 2:
            xs.set_global_mesh(xs.Mesh(range(DEVICES), (2, 4), ("rows", "columns")))
            xs.mark_sharding(model[0].bias, xs.get_global_mesh(), ("columns",))
        optimizer.zero_grad()
        model(batch.to("xla")).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()


def test_parameters_of_a_model_that_the_function_built_are_counted() -> None:
    result = run(splits_parameters, False, spmd=DEVICES)
    (mesh,) = only(result.run.events(), Mesh)  # once, as nothing changed
    assert (mesh.sharded, mesh.sharded_bytes) == (1, 16 * 8 * 4)
    assert (mesh.replicated, mesh.replicated_bytes) == (3, (16 + 4 * 16 + 4) * 4)


def test_what_changes_is_recorded_again() -> None:
    first, second = only(run(splits_parameters, True, spmd=DEVICES).run.events(), Mesh)
    assert (first.shape, first.axes, first.sharded) == ((DEVICES, 1), ("data", "model"), 1)
    assert (second.shape, second.axes, second.sharded) == ((2, 4), ("rows", "columns"), 2)
    assert second.sharded_bytes == first.sharded_bytes + 16 * 4


# -- accelerate -------------------------------------------------------------------------------------------------------


def accelerated(model: Any, data: list[Any]) -> tuple[list[float], dict[str, Any]]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(torch.cat(data), batch_size=len(data[0]))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for x in loader:
        if xs.get_global_mesh() is not None:
            xs.mark_sharding(x, xs.get_global_mesh(), ("data", None))
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)))
    accelerator.wait_for_everyone()
    state = {
        "processes": (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index),
        "type": str(accelerator.distributed_type),
        "main": (accelerator.is_main_process, accelerator.is_local_main_process),
        "group": torch.distributed.is_initialized(),
    }
    return [loss.item() for loss in losses], state


def test_accelerate_reports_one_process() -> None:
    pytest.importorskip("accelerate")
    alone, together = net(), net()
    expected, _ = run(accelerated, alone, batches()).value
    result = run(accelerated, together, batches(), spmd=DEVICES)
    losses, state = result.value
    assert losses == pytest.approx(expected, abs=1e-5) and difference(alone, together) < 1e-5
    assert state == {
        "processes": (1, 0, 0),
        "type": "DistributedType.XLA",
        "main": (True, True),
        "group": False,
    }
    counted(result)
    assert only(result.run.events(), Start)[0].world_size == 1
    assert (only(result.run.events(), Batch)[-1].per_device, only(result.run.events(), Batch)[-1].ranks) == (16, 1)


# -- loaders ----------------------------------------------------------------------------------------------------------


def pins_memory() -> int:
    """What torch_xla imports with jax beside it, e.g. for FSDP v2, is imported before the loader begins."""
    from torch_xla._internal import jax_workarounds

    getattr(jax_workarounds, "maybe_get_torchax", lambda: None)()
    return len(list(torch.utils.data.DataLoader(list(range(8)), batch_size=2, pin_memory=True)))


def test_a_loader_that_pins_memory_gives_its_batches_beside_torchax() -> None:
    assert run(pins_memory, spmd=DEVICES).value == 4


# -- transformers' Trainer with FSDP v2 -------------------------------------------------------------------------------


def transformer(kind: str) -> Any:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more: dict[str, Any] = {"intermediate_size": 32, "max_position_embeddings": 32}
    if kind == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **more, num_key_value_heads=2))
    bert = transformers.BertConfig(**sizes, **more, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return transformers.BertForSequenceClassification(bert)


def trained(model: Any, kind: str, optim: str, fsdp: dict[str, Any]) -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(0, 64, (8,), generator=generator) for _ in range(16)]
    data = [{"input_ids": ids, "labels": ids[0] % 2 if kind == "bert" else ids} for ids in texts] * 4
    more: dict[str, Any] = {"fsdp": "full_shard", "fsdp_config": {"xla": True, "xla_fsdp_v2": True, **fsdp}}
    arguments = TrainingArguments(
        *["trainer"],
        per_device_train_batch_size=16,
        max_steps=5,
        optim=optim,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **(more if fsdp else {}),
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "world": arguments.world_size, "wrapper": type(trainer.model).__name__}


BY_LAYER = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "xla_fsdp_grad_ckpt": True}
WRAPPED = [
    pytest.param("llama", "adafactor", BY_LAYER, id="llama by layer, checkpointed"),
    pytest.param("bert", "adamw_torch_xla", {"min_num_params": 300}, id="bert by size"),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "optim", "fsdp"), WRAPPED)
def test_trainer_with_fsdp_v2(kind: str, optim: str, fsdp: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    alone, together = transformer(kind), transformer(kind)
    names, before = set(together.state_dict()), digest(together)
    expected = run(trained, alone, kind, optim, {}, timeout=240.0).value
    result = run(trained, together, kind, optim, fsdp, spmd=DEVICES, timeout=240.0)
    losses = result.value["losses"]
    assert losses == pytest.approx(expected["losses"], abs=1e-4) and losses[-1] < losses[0]
    assert result.value["wrapper"] == "SpmdFullyShardedDataParallel" and result.value["world"] == 1
    # Home under the notebook's own names.
    assert digest(together) != before and set(together.state_dict()) == names
    assert difference(alone, together) < 1e-4
    assert not any("_orig_module" in name for name, _ in together.named_modules())
    counted(result)
    mesh = mesh_of(result)
    assert (mesh.shape, mesh.axes) == ((DEVICES, 1), ("fsdp", "tensor"))
    parameters = list(together.parameters())
    assert (mesh.sharded, mesh.replicated) == (len(parameters), 0)
    assert mesh.sharded_bytes == sum(one.numel() * one.element_size() for one in parameters)


def builds_and_trains() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    return trained(model, "llama", "adamw_torch_xla", {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})


@pytest.mark.long
def test_a_hoisted_model_that_fsdp_wrapped_comes_home() -> None:
    pytest.importorskip("transformers")
    options = Options(spmd=DEVICES, timeout=240.0)
    result = train.start(train.function_request(builds_and_trains), options)
    assert list(result.models) == ["model"], [event.text for event in only(result.run.events(), Warned)]
    assert result.value["losses"][-1] < result.value["losses"][0]
    assert all(one.device.type == "cpu" for one in result.models["model"].parameters())


# -- what the environment says ----------------------------------------------------------------------------------------


def environment() -> dict[str, str | None]:
    names = ("XLA_USE_SPMD", "CPU_NUM_DEVICES", "TF_CPP_MIN_LOG_LEVEL", "TPU_VISIBLE_CHIPS")
    return {name: os.environ.get(name) for name in names}


def test_the_notebooks_variable_neither_disturbs_nor_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_SPMD", "0")
    monkeypatch.setenv("CPU_NUM_DEVICES", "3")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    result = run(environment, spmd=DEVICES)
    assert result.value == {
        "XLA_USE_SPMD": "1",
        "CPU_NUM_DEVICES": "8",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TPU_VISIBLE_CHIPS": None,
    }
    assert "deprecated" not in (result.run.path / "rank-0.log").read_text()
    assert os.environ["XLA_USE_SPMD"] == "0" and os.environ["CPU_NUM_DEVICES"] == "3"


def test_the_sessions_devices_are_taken() -> None:
    session.initialise(spmd=4)
    assert run(environment).value["CPU_NUM_DEVICES"] == "4"  # %tpu_init --spmd 4: all cells
    assert run(environment, spmd=0).value["CPU_NUM_DEVICES"] == "4"  # %%tpu_train --spmd
    assert run(environment, processes=1).value["XLA_USE_SPMD"] is None
    session.initialise()
    assert run(environment, spmd=0).value["CPU_NUM_DEVICES"] == "8"


def test_precision_is_that_of_the_partitioned_graph() -> None:
    told = only(run(by_hand, net(), batches(), "marked", spmd=2, precision="bf16").run.events(), Precision)[-1]
    assert (told.share, told.agrees) == (1.0, True) and told.ops > 0


def test_spmd_that_the_notebook_left_behind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    text = said(failed(environment))
    assert "XLA_USE_SPMD is set in the notebook, but this run does not use SPMD" in text
    assert "--spmd" in text and "os.environ.pop('XLA_USE_SPMD', None)" in text
    assert run(environment, spmd=2).value["CPU_NUM_DEVICES"] == "2"


def test_devices_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xr, "global_runtime_device_count", lambda: 1)  # fake: as with TPU_VISIBLE_CHIPS=0
    text = said(failed(environment, spmd=DEVICES))
    assert "--spmd 8 was requested, but the runtime has 1 devices" in text and "(%%tpu_train --spmd)" in text


# -- meshes and batches that do not go together -----------------------------------------------------------------------


def uneven_loader() -> None:
    spec = xs.ShardingSpec(xs.get_global_mesh(), ("data", None), minibatch=True)
    for batch in pl.MpDeviceLoader(batches(12), torch_xla.device(), input_sharding=spec):
        batch.sum().item()


def unknown_axis() -> None:
    xs.mark_sharding(torch.ones(8, 8, device="xla"), xs.get_global_mesh(), ("batch", None))


def fsdp_by_hand() -> None:
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    SpmdFullyShardedDataParallel(net())


def process_group() -> None:
    torch.distributed.init_process_group("xla", init_method="xla://")


def mesh_that_is_not_there() -> None:
    xs.mark_sharding(torch.ones(8, 8, device="xla"), xs.get_global_mesh(), ("data", None))


def mesh_of_its_own() -> None:
    xs.mark_sharding(torch.ones(8, 8, device="xla"), xs.Mesh([0], (1, 1), ("data", "model")), ("data", None))


@pytest.mark.parametrize(
    ("function", "spmd", "parts"),
    [
        (
            uneven_loader,
            8,
            ("a batch of 12, which cannot be split evenly over 8 devices", "e.g. 16", "omit minibatch=True"),
        ),
        (unknown_axis, 8, ("uses the mesh axis 'batch'", '"data" and "model"')),
        (fsdp_by_hand, 8, ("uses the mesh axis 'fsdp'", '("fsdp", "tensor")')),
        (process_group, 8, ("backend xla in an SPMD run", "Remove dist.init_process_group")),
        (mesh_that_is_not_there, None, ("this run does not use SPMD", "%%tpu_train --spmd")),
        (mesh_of_its_own, None, ("this run does not use SPMD", "%%tpu_train --spmd")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_input_is_explained(function: Any, spmd: int | None, parts: tuple[str, ...]) -> None:
    error = failed(function, spmd=spmd)
    text = said(error)
    assert all(part in text for part in parts), text
    assert f"in {function.__name__}" in text and of(error).status == "failed"


def test_the_group_that_the_explanation_names_can_be_had() -> None:
    def gloo() -> tuple[int, int]:
        torch.distributed.init_process_group("gloo", init_method="xla://")
        return torch.distributed.get_rank(), torch.distributed.get_world_size()

    assert run(gloo, spmd=DEVICES).value == (0, 1)
