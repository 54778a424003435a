"""A BERT that transformers' Trainer trains, alone and with FSDP v2: the graphs that are traced are those that are
trained, and what the model reads in the library is told with both lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.backends.torch_xla.traced import compiled, same, taken, traced, trained
from tpu_magics.backends.lowered import TraceResult
from tpu_magics.launch import session
from tpu_magics.preflight.roofline import turn

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
DEVICES = 8
SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def bert() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=16, num_labels=2)
    return transformers.BertForSequenceClassification(config)


def rows(count: int) -> list[dict[str, Any]]:
    mask = torch.ones(8, dtype=torch.long)
    return [{"input_ids": torch.randint(0, 32, (8,)), "attention_mask": mask, "labels": n % 2} for n in range(count)]


def trains(model: Any, folder: Path, **more: Any) -> None:
    import transformers

    quiet: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 50}
    arguments = transformers.TrainingArguments(str(folder), max_steps=3, optim="adamw_torch", **quiet, **more)
    transformers.Trainer(model, arguments, train_dataset=rows(64)).train()


def with_trainer(model: Any, folder: Path) -> None:
    trains(model, folder, per_device_train_batch_size=4)


def fully_sharded(model: Any, folder: Path) -> None:
    config = {"xla": True, "xla_fsdp_v2": True, "transformer_layer_cls_to_wrap": ["BertLayer"]}
    trains(model, folder, per_device_train_batch_size=8, fsdp="full_shard", fsdp_config=config)


def assert_mask_is_told(found: TraceResult) -> None:
    [read] = found.reads
    assert read.known and read.count == 3
    assert read.place is not None and read.place.path == __file__ and read.place.code.endswith(".train()")
    assert read.inside is not None and read.inside.path == "transformers/masking_utils.py" and read.inside.line > 1


def test_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = same(with_trainer, bert(), tmp_path / "output", reads=1, tpu=True)
    assert found.settled and found.batch == 4 and found.notes == ()
    # On a TPU accelerate ends a step before the forward pass: a small graph, which counts the labels, and the step.
    assert found.sequence[-4:] == (1, 3, 1, 3) and turn(found) == (1, 3) and found.rows == (None, 4, None, None)
    assert [one.steady for one in found.graphs] == [False, False, False, True] and found.graphs[1].parameters
    assert any(name.endswith("exp_avg of classifier.weight") for name in found.graphs[-1].parameters)
    assert_mask_is_told(found)


@pytest.mark.long
def test_fsdp_v2_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = traced(fully_sharded, bert(), tmp_path / "output", devices=DEVICES)
    real = compiled(trained(fully_sharded, bert(), tmp_path / "output", devices=DEVICES))
    assert len(found.graphs) == 3 and (set(taken(found)) <= set(real) or not session.current.tpu_branch)
    assert found.settled and {one.partitions for one in found.graphs} == {DEVICES}
    assert_mask_is_told(found)
