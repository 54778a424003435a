"""transformers' Trainer in a run: its settings for TPUs, its values in the records, its search for a batch size, and
several ranks. Real runs on XLA:CPU."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers.trainer")  # here, as in a notebook: else every worker imports it

from tests import framework
from tests.launch.launching import FakeNotebook, digest, failed, fake_notebook, run
from tests.launch.test_diagnosis import HBM_USED
from tpu_magics.launch.options import Options
from tpu_magics.launch.results import TrainResult
from tpu_magics.launch.train import CellSource, train_cell
from tpu_magics.runs.events import Batch, Metrics, Precision, Read, Value, Warned, only

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

PATIENCE = 200.0  # seconds: the programs are small, but machines may be busy
COMMON = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "learning_rate": 0.05}


class Net(torch.nn.Module):
    """Any module can be trained; this one compiles quickly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        found = self.layers(x)[:, 0]
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


def rows(count: int = 64) -> list[dict[str, Any]]:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return [{"x": one, "labels": one.sum()} for one in x]


def trained(model: Any, data: Any = None, **arguments: Any) -> Any:
    """Train `model`, and return what the Trainer logged, with the batch size that it came to."""
    from transformers import Trainer, TrainingArguments

    made = TrainingArguments("output", **{"max_steps": 6, "optim": "adamw_torch", **COMMON, **arguments})
    evaluated = rows(24) if data is None else data
    trainer = Trainer(model, made, train_dataset=data or rows(), eval_dataset=evaluated)
    trainer.train()
    if made.eval_strategy == "no" and made.do_eval:
        trainer.evaluate()
    return trainer.state.log_history, trainer._train_batch_size, trainer.state.global_step


def train(model: Any, data: Any = None, *, ranks: int = 1, **arguments: Any) -> TrainResult:
    return run(trained, model, data, kwargs=arguments, processes=ranks, timeout=PATIENCE)


def losses(history: Any) -> list[float]:
    return [entry["loss"] for entry in history if "loss" in entry]


def weights(model: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def furthest(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest difference between two models' weights."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


# -- its settings for TPUs --------------------------------------------------------------------------------------------
def test_the_settings_of_the_guides_together(tmp_path: Path) -> None:
    model = Net()
    before = digest(model)
    result = train(
        model,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        max_steps=-1,
        optim=framework.OPTIMIZER,
        bf16=True,
        bf16_full_eval=True,
        gradient_accumulation_steps=2,
        dataloader_drop_last=True,
        accelerator_config={"use_seedable_sampler": True},
        eval_strategy="epoch",
        save_strategy="epoch",
        debug="tpu_metrics_debug",
    )
    history, batch_size, steps = result.value
    assert (batch_size, steps) == (8, 8) and digest(model) != before

    # the weights at home are those of the last checkpoint, and bf16 values, as the device's were
    saved = torch.load(tmp_path / "output" / "checkpoint-8" / "pytorch_model.bin", weights_only=True)
    assert furthest(weights(model), saved) == 0.0
    assert all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in model.state_dict().values())

    # what was logged, once and as it was
    found = only(result.run.events("value"), Value)
    for name in ("loss", "learning_rate", "grad_norm", "eval_loss", "train_loss"):
        expected = [entry[name] for entry in history if name in entry]
        recorded = [event for event in found if event.name == name]
        assert sum(event.n for event in recorded) == len(expected) and recorded[-1].value == expected[-1]
        assert {event.rank for event in recorded} == {0}

    precision = only(result.run.events("precision"), Precision)[-1]
    assert (precision.asked, precision.source) == ("bf16", "TrainingArguments(bf16=True)")
    assert precision.agrees and precision.share == 1.0 and precision.parameters.get("f32", 0) == 0
    batch = only(result.run.events("batch"), Batch)[-1]
    assert (batch.per_device, batch.accumulation, batch.ranks) == (8, 2, 1)

    # two evaluations, two reports of metrics: in the run's folder, not in the cell
    reports = only(result.run.events("metrics"), Metrics)
    assert [(one.file, one.number) for one in reports] == [(f"rank-0-metrics-{n}.txt", n) for n in range(2)]
    assert "Metric: " not in result.run.log(0)
    text = (result.run.path / reports[-1].file).read_text()
    for metric, count in (("CompileTime", reports[-1].compiles), ("ExecuteTime", reports[-1].executions)):
        told = re.search(rf"^Metric: {metric}\n  TotalSamples: (\d+)$", text, re.MULTILINE)
        assert told is not None and count == int(told[1])
    assert reports[-1].compile_seconds and reports[-1].execute_seconds
    assert reports[0].executions and reports[-1].executions and reports[0].executions < reports[-1].executions


def test_both_optimizers_that_work_do_the_same() -> None:
    left, right = Net(), Net()
    one, other = train(left), train(right, optim=framework.OPTIMIZER)
    assert losses(one.value[0]) == pytest.approx(losses(other.value[0]), abs=1e-6)
    assert furthest(weights(left), weights(right)) < 1e-6
    assert {event.code for event in only(one.run.events("warning"), Warned)} <= {"eager"}


FORM_3 = f"""
OPTIMIZER = {framework.OPTIMIZER!r}
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import torch
ids = torch.randint(1, 50, (16, 8), generator=torch.Generator().manual_seed(0))
rows = [{{"input_ids": ids[n], "attention_mask": torch.ones(8).long(), "labels": n % 2}} for n in range(16)]
trainer = Trainer(
    model=model,
    args=TrainingArguments("output", per_device_train_batch_size=4, max_steps=3, optim=OPTIMIZER,
                           logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True),
    train_dataset=rows,
)
output = trainer.train()
history = trainer.state.log_history
"""


def test_plain_statements_of_a_cell() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    notebook: FakeNotebook = fake_notebook()
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    model = notebook.names["model"] = BertForSequenceClassification(config)
    before = digest(model)
    result = train_cell(CellSource("\n" + FORM_3, "<cell>"), (), Options(timeout=PATIENCE))
    assert result is not None and result.status == "done" and digest(model) != before
    assert len(losses(notebook.names["history"])) == 3
    recorded = [event for event in only(result.run.events("value"), Value) if event.name == "loss"]
    assert recorded[-1].value == losses(notebook.names["history"])[-1]


# -- what XLA refuses -------------------------------------------------------------------------------------------------
def test_the_default_optimizer_takes_plain_steps() -> None:
    """Its fused form has no kernel for XLA."""
    from transformers import TrainingArguments

    default = next(field.default for field in dataclasses.fields(TrainingArguments) if field.name == "optim")
    assert "fused" in str(default)
    plain, model = Net(), Net()
    run(trained, plain, kwargs={"optim": "adamw_torch"}, timeout=PATIENCE)
    result = run(trained, model, kwargs={"optim": default}, timeout=PATIENCE)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert not torch.equal(next(model.parameters()), next(Net().parameters()))
    told = [one.text for one in only(result.run.events("warning"), Warned) if one.code == "fused-optimizer"]
    assert len(told) == 1 and "AdamW(fused=True) has no XLA kernel" in told[0]


def test_a_fused_optimizer_of_an_earlier_cell_goes_on_and_stays_fused() -> None:
    """Also where its steps were counted on the device by `load_state_dict`."""

    def steps(model: Any, optimizer: Any, again: bool, device: Any = None) -> None:
        model.to(device or "cpu")
        if again:
            optimizer.load_state_dict(optimizer.state_dict())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 8, device=device), torch.ones(4, device=device))["loss"].backward()
            optimizer.step()

    def on_xla(model: Any, optimizer: Any, again: bool) -> None:
        steps(model, optimizer, again, framework.device())
        framework.sync()

    for again in (False, True):
        trained_here, brought_home = Net(), Net()
        optimizers = [torch.optim.Adam(one.parameters(), fused=True) for one in (trained_here, brought_home)]
        for model, optimizer in zip((trained_here, brought_home), optimizers, strict=True):
            steps(model, optimizer, False)
        steps(trained_here, optimizers[0], False)
        result = run(on_xla, brought_home, optimizers[1], again)
        lines = [one.site.code for one in only(result.run.events("read"), Read)]
        assert "optimizer.step()" not in lines, "the count of steps is read from the device"
        steps(trained_here, optimizers[0], False)
        steps(brought_home, optimizers[1], False)
        for here, home in zip(trained_here.parameters(), brought_home.parameters(), strict=True):
            torch.testing.assert_close(here, home, rtol=1e-5, atol=1e-7)
        assert all(group["fused"] is True for group in optimizers[1].param_groups)


def test_fp16_is_explained() -> None:
    error = failed(trained, Net(), kwargs={"fp16": True}, timeout=PATIENCE)
    assert "TrainingArguments(fp16=True) requests fp16 mixed precision, which TPUs do not support." in error.what
    assert "TrainingArguments(bf16=True)" in error.todo


def test_a_batch_that_does_not_divide_is_explained() -> None:
    arguments = {"per_device_train_batch_size": 3, "accelerator_config": {"split_batches": True}}
    error = failed(trained, Net(), kwargs=arguments, processes=2, timeout=PATIENCE)
    assert "a batch size of 3 cannot be split over 2 ranks at `trainer.train()`" in error.what
    assert "a multiple of 2 (2 or 4)" in error.todo and "split_batches=False" in error.todo


# -- the search for a batch size --------------------------------------------------------------------------------------
class FakeGlutton(Net):
    """Runs out of memory in the third step of every batch larger than six: `how` tells by which error, and where."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.large = 0

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        self.large += len(x) > 6
        if len(x) > 6 and self.large % 3 == 0:
            getattr(self, f"by_{self.how}")(x)
        return super().forward(x, labels)

    def by_compiler(self, _x: Any) -> None:
        """Its recorded text, raised where a step is compiled, before anything of it has run."""
        import torch_xla

        extension: Any = torch_xla._XLAC
        original = extension._xla_step_marker

        def fake_step_marker(*_args: Any, **_kwargs: Any) -> None:
            extension._xla_step_marker = original
            raise RuntimeError("Bad StatusOr access", HBM_USED)

        extension._xla_step_marker = fake_step_marker

    def by_runtime(self, x: Any) -> None:
        """XLA:CPU itself, which is asked for 64 TiB and has them not: the step's results are lost."""
        self.kept = torch.ones(1 << 44, device=x.device) * x.sum()


def glutton(model: Any, **arguments: Any) -> Any:
    """Train, and leave nothing but weights behind."""
    try:
        return trained(model, **arguments)
    finally:
        vars(model).pop("kept", None)


@pytest.mark.parametrize("how", ["compiler", "runtime"])
def test_a_smaller_batch_is_found_and_trained_from_the_beginning(how: str) -> None:
    plain = Net()
    expected = train(plain, per_device_train_batch_size=6, optim=framework.OPTIMIZER).value
    model = FakeGlutton(how)
    arguments = {"auto_find_batch_size": True, "per_device_train_batch_size": 8, "optim": framework.OPTIMIZER}
    result = run(glutton, model, kwargs=arguments, timeout=PATIENCE)
    history, batch_size, steps = result.value
    assert (batch_size, steps) == (6, 6)
    assert losses(history) == losses(expected[0]) and furthest(weights(model), weights(plain)) == 0.0
    told = [event.text for event in only(result.run.events("warning"), Warned) if event.code == "smaller-batch"]
    assert [re.findall(r"batch size of (\d+).* again with (\d+)", text) for text in told] == [
        [("8", "7")],
        [("7", "6")],
    ]


def test_nothing_fits() -> None:
    class FakeGreed(Net):
        def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
            raise RuntimeError(HBM_USED)

    arguments = {"auto_find_batch_size": True, "per_device_train_batch_size": 3}
    error = failed(trained, FakeGreed(), kwargs=arguments, timeout=PATIENCE)
    assert "found no batch size that fits into memory at `trainer.train()`" in error.what


def test_an_evaluation_that_does_not_fit_says_so() -> None:
    class FakeEvaluation(Net):
        def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
            if not self.training:
                raise RuntimeError(HBM_USED)
            return super().forward(x, labels)

    arguments = {"auto_find_batch_size": True, "eval_strategy": "steps", "eval_steps": 2}
    error = failed(trained, FakeEvaluation(), kwargs=arguments, timeout=PATIENCE)
    if "Evaluation hit an out-of-memory error" in inspect.getsource(
        sys.modules["transformers.trainer"]
    ):  # transformers 5.23
        assert "ran out of memory during evaluation" in error.what and "per_device_eval_batch_size" in error.todo
    else:  # 5.15 takes it for one of training
        assert "found no batch size that fits into memory" in error.what


# -- several ranks ----------------------------------------------------------------------------------------------------
def sentences(count: int = 80) -> list[dict[str, Any]]:
    """Token ids whose labels are left out unevenly, so that ranks have different numbers of them."""
    ids = torch.randint(1, 32, (count, 8), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    for number in range(count):
        labels[number, 8 - number % 4 :] = -100
    return [{"input_ids": one, "labels": other} for one, other in zip(ids, labels, strict=True)]


def language_model(tied: bool = True) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0))


@pytest.mark.long
def test_two_ranks_train_as_one_with_the_same_global_batch() -> None:
    alone, together = language_model(), language_model()
    common: dict[str, Any] = {"max_steps": 10, "learning_rate": 1e-3, "debug": "tpu_metrics_debug", "do_eval": True}
    one = train(alone, sentences(), per_device_train_batch_size=8, **common)
    two = train(together, sentences(), ranks=2, per_device_train_batch_size=4, **common)
    assert len(losses(one.value[0])) == 10
    for history, batch_size, _steps in two.values:
        assert batch_size == 4 and losses(history) == pytest.approx(losses(one.value[0]), abs=1e-5)
    assert furthest(weights(alone), weights(together)) < 1e-5
    evaluations = [[entry["eval_loss"] for entry in result.value[0] if "eval_loss" in entry] for result in (one, two)]
    assert len(evaluations[0]) == 1 and evaluations[0] == pytest.approx(evaluations[1], abs=1e-4)

    # one rank logs and reports for all
    assert {event.rank for event in only(two.run.events("value"), Value)} == {0}
    assert {event.rank for event in only(two.run.events("metrics"), Metrics)} == {0}
    assert two.run.log(1).count("'loss'") == 0
    assert {(event.rank, event.per_device, event.ranks) for event in only(two.run.events("batch"), Batch)} == {
        (0, 4, 2),
        (1, 4, 2),
    }


@pytest.mark.long
@pytest.mark.parametrize("max_norm", [0.05, 1.0])
def test_fsdp_trains_as_plain_data_parallelism(max_norm: float) -> None:
    """XLA FSDP (v1): every rank holds a part of each parameter, and the weights come home whole."""
    plain, sharded = language_model(tied=False), language_model(tied=False)
    common: dict[str, Any] = {"max_steps": 8, "learning_rate": 1e-3, "max_grad_norm": max_norm}
    fsdp: dict[str, Any] = {
        "fsdp": "full_shard",
        "fsdp_config": {"xla": True, "xla_fsdp_grad_ckpt": True, "min_num_params": 500, "xla_fsdp_settings": {}},
    }
    one = train(plain, sentences(), per_device_train_batch_size=8, **common)
    two = train(sharded, sentences(), ranks=2, per_device_train_batch_size=4, **common, **fsdp)
    for history, *_ in two.values:
        assert losses(history) == pytest.approx(losses(one.value[0]), abs=1e-4)
        norms = [[entry["grad_norm"] for entry in found if "grad_norm" in entry] for found in (history, one.value[0])]
        assert norms[0] == pytest.approx(norms[1], abs=1e-4)  # of all shards, the same on every rank
    assert losses(one.value[0])[-1] < losses(one.value[0])[0]
    assert furthest(weights(plain), weights(sharded)) < 1e-4


def clips_shards(norm_type: float) -> Any:
    """Clip a vector that is cut over the ranks, and one that every rank has whole."""

    from tpu_magics.backends.torch_xla import library_fixes

    device, rank, size = framework.device(), framework.rank(), framework.world_size()
    generator = torch.Generator().manual_seed(0)
    cut, whole = torch.randn(6 * size, generator=generator), torch.randn(5, generator=generator)
    expected = [torch.nn.Parameter(torch.zeros(6 * size)), torch.nn.Parameter(torch.zeros(5))]
    expected[0].grad, expected[1].grad = cut.clone(), whole.clone()
    norm = torch.nn.utils.clip_grad_norm_(expected, 0.5, norm_type)

    shard, rest = (torch.nn.Parameter(torch.zeros(count, device=device)) for count in (6, 5))
    shard._is_sharded = True  # torch_xla's mark
    shard.grad, rest.grad = cut.chunk(size)[rank].to(device), whole.to(device)
    found = library_fixes.clip([shard, rest], 0.5, norm_type)
    same = torch.allclose(shard.grad.cpu(), expected[0].grad.chunk(size)[rank])
    return float(found) - float(norm), same, torch.allclose(rest.grad.cpu(), expected[1].grad)


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_clipping_counts_the_shards_of_all_ranks(norm_type: float) -> None:
    for difference, *same in run(clips_shards, norm_type, processes=2, timeout=PATIENCE).values:
        assert abs(difference) < 1e-5 and all(same)
