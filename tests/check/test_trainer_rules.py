"""The group `trainer`: the tables match the installed transformers and torch_xla, and fixed code trains equally."""

from __future__ import annotations

import ast
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.check.group_checks import GroupChecks
from tpu_magics.check.rules import _trainer, trainer
from tpu_magics.check.rules.trainer import RULES

IMPORT = "from transformers import TrainingArguments\n"
XLA = 'optim="adamw_torch_xla", dataloader_drop_last=True'


GROUP = GroupChecks(RULES, IMPORT)
check, found, codes = GROUP.check, GROUP.found, GROUP.codes


def fixed_text(text: str) -> str:
    return GROUP.fixed_text(IMPORT + text).removeprefix(IMPORT)


def run(code: str, **environment: str) -> str:
    """What a program prints, in a process of its own on XLA:CPU."""
    env = {**os.environ, "PJRT_DEVICE": "CPU", "TOKENIZERS_PARALLELISM": "false", **environment}
    return forks.run("torch_xla", code, environment=env).strip().splitlines()[-1]


# -- the tables ------------------------------------------------------------------------------------------------------


@cache
def installed() -> dict[str, Any]:
    """Fields, optimizers and arguments of the installed libraries."""
    code = """
import dataclasses, inspect, json
from transformers import Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp
fields = {one.name: str(one.default) for one in dataclasses.fields(Seq2SeqTrainingArguments)}
print(json.dumps({
    "fields": list(fields),
    "default": fields["optim"],
    "names": {one.name: one.value for one in OptimizerNames},
    "settings": list(inspect.signature(Fsdp.__init__).parameters),
}))
"""
    result: dict[str, Any] = json.loads(run(code))
    return result


@pytest.mark.process
def test_removed_arguments_are_gone_and_their_successors_are_there() -> None:
    fields = set(installed()["fields"])
    assert not fields & trainer.REMOVED_ARGUMENTS.keys()
    for name, removed in trainer.REMOVED_ARGUMENTS.items():
        new = removed.new or removed.instead.partition("=")[0]
        assert not new or new in fields, name
        assert new or removed.fix, name
    assert trainer.REMOVED_ARGUMENTS.keys() >= trainer.TAKEN_OUT


@pytest.mark.process
def test_optimizers_are_those_of_the_installed_transformers() -> None:
    known = set(installed()["names"].values())
    rule = trainer
    assert installed()["default"] == rule._DEFAULT in rule._FUSED
    assert known >= {*rule._FUSED, *rule._BITSANDBYTES, "adamw_torch_xla"}
    assert not known & set(rule._GONE)
    for name, value in installed()["names"].items():
        assert rule._ENUM_NAMES.get(name, name.lower()) == value or value not in rule._BITSANDBYTES


@pytest.mark.process
def test_fsdp_settings_are_those_of_the_installed_torch_xla() -> None:
    wrapping = {"self", "module", "auto_wrap_policy", "auto_wrapper_callable"}  # transformers gives these itself
    assert set(installed()["settings"]) - wrapping == _trainer.XLA_SETTINGS


# -- fixes -----------------------------------------------------------------------------------------------------------


def test_the_optimizer_is_added_or_replaced() -> None:
    assert (
        fixed_text('args = TrainingArguments("out")\n') == 'args = TrainingArguments("out", optim="adamw_torch_xla")\n'
    )
    assert fixed_text("args = TrainingArguments()\n") == 'args = TrainingArguments(optim="adamw_torch_xla")\n'
    assert fixed_text('args = TrainingArguments("out", optim="adamw_torch_fused")\n') == (
        'args = TrainingArguments("out", optim="adamw_torch_xla")\n'
    )
    several = 'args = TrainingArguments(\n    output_dir="out",  # here\n    bf16=True,  # matrix units\n)\n'
    assert fixed_text(several) == (
        'args = TrainingArguments(\n    output_dir="out",  # here\n    optim="adamw_torch_xla",\n'
        "    bf16=True,  # matrix units\n)\n"
    )
    assert fixed_text('args = TrainingArguments(output_dir="é", **{"bf16": True})\n') == (
        'args = TrainingArguments(output_dir="é", optim="adamw_torch_xla", **{"bf16": True})\n'
    )
    bitsandbytes = 'args = TrainingArguments("out", optim="adamw_bnb_8bit", dataloader_drop_last=True)\n'
    assert fixed_text(bitsandbytes) == bitsandbytes  # another optimizer: for a person to decide


RENAMED = f"""args = TrainingArguments(
    "out",
    debug="tpu_metrics_debug",
    eval_strategy="epoch",
    warmup_steps=0.25,
    bf16=True,
    {XLA})
"""


def test_arguments_are_renamed_or_taken_out() -> None:
    text = f"""args = TrainingArguments(
    "out",
    tpu_num_cores=8,  # chips
    tpu_metrics_debug=True,
    evaluation_strategy="epoch",
    warmup_ratio=0.25,
    fp16=True,
    fp16_opt_level="O1",
    {XLA},
    overwrite_output_dir=True)
"""
    assert fixed_text(text) == RENAMED


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"tpu_num_cores=8, {XLA}", XLA),
        (f"{XLA}, tpu_num_cores=8", XLA),
        (f"{XLA}, tpu_num_cores=8,", f"{XLA},"),
        (f"{XLA}, tpu_metrics_debug=False", XLA),
        (f'{XLA}, debug="", tpu_metrics_debug=True', None),
        (f"{XLA}, warmup_steps=10, warmup_ratio=0.1", None),
        (f"{XLA}, warmup_ratio=ratio", f"{XLA}, warmup_steps=ratio"),
        (f"{XLA}, warmup_ratio=1.0", None),
        (f"{XLA}, warmup_ratio=float(open('ratio').read())", None),
        (f"{XLA}, fp16=half", None),
        (f"{XLA}, bf16=False, fp16=True", None),
        (f"{XLA}, half_precision_backend=(\n'auto'  # or amp\n)", XLA),
    ],
)
def test_one_argument(before: str, after: str | None) -> None:
    text = f"ratio, half = 0.1, True\nargs = TrainingArguments('out', {before})\n"
    wanted = before if after is None else after
    assert found(text)
    assert fixed_text(text) == f"ratio, half = 0.1, True\nargs = TrainingArguments('out', {wanted})\n"


def test_what_is_not_a_keyword_is_not_rewritten() -> None:
    text = f"config = dict(tpu_num_cores=8, {XLA})\nargs = TrainingArguments('out', **config)\n"
    assert codes(text) == ["TPU603"]
    assert fixed_text(text) == text


FSDP = f"""args = TrainingArguments("out", {XLA}, fsdp="full_shard", fsdp_config={{
    "xla_fsdp_grad_ckpt": True,
    "min_split_size_mb": 64,
    "xla_fsdp_settings": {{"compute_dtype": torch.bfloat16, "min_split_size_mb": 64}},
}})
"""


def test_fsdp_keys_are_fixed() -> None:
    new = fixed_text("import torch\n" + FSDP)
    assert ast.literal_eval(new[new.index("{") : new.rindex("}") + 1]) == {
        "xla": True,
        "xla_fsdp_grad_ckpt": True,
        "xla_fsdp_settings": {"compute_dtype": "bfloat16"},
    }


# -- what is said is true --------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys, warnings
import torch
import torch_xla.debug.metrics as met
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
warnings.simplefilter("ignore")

def trained(text):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, vocab_size=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    ones = torch.ones(8, dtype=torch.long)
    data = [{"input_ids": (n + torch.arange(8)) % 50, "attention_mask": ones, "labels": n % 2} for n in range(10)]
    trainer = Trainer(model=model, args=args_of(text), train_dataset=data)
    before = met.counter_value("UncachedCompile") or 0
    try:
        loss = trainer.train().training_loss
    except RuntimeError as error:
        return str(error)
    compiles = (met.counter_value("UncachedCompile") or 0) - before
    return loss, compiles, model.classifier.weight.detach().cpu().flatten().tolist()

def args_of(text):
    names = {"TrainingArguments": TrainingArguments, "torch": torch}
    exec(text, names)
    return names["args"]

def shown(text, *names):
    args = args_of(text)
    return {**{name: getattr(args, name) for name in names}, "steps": args.get_warmup_steps(100)}
"""


def result_of(on_host: bool = False, **said: str) -> dict[str, Any]:
    """What expressions over `trained` and `shown` give, in one process. `on_host`: torch_xla is not looked for."""
    asked = ", ".join(f"{name!r}: {expression}" for name, expression in said.items())
    result: dict[str, Any] = json.loads(
        run(f"{PROGRAM}\nprint(json.dumps({{{asked}}}, default=str))", USE_TORCH_XLA="0" if on_host else "1")
    )
    return result


@pytest.mark.long
@pytest.mark.process
def test_what_the_fixes_write_is_taken_trains_and_gives_the_same(tmp_path: Path) -> None:
    said = 'report_to="none", save_strategy="no", disable_tqdm=True, per_device_train_batch_size=4, num_train_epochs=2'
    text = f"args = TrainingArguments({str(tmp_path)!r}, {said}, dataloader_drop_last=True)\n"
    short = text.replace("dataloader_drop_last=True", 'optim="adamw_torch_xla"')
    assert codes(text) == ["TPU601"]
    assert codes(short) == ["TPU606"]
    on_xla = result_of(
        renamed=f"shown({RENAMED!r}, 'bf16', 'eval_strategy', 'debug')",
        fsdp=f"shown({fixed_text(FSDP)!r}, 'xla_fsdp_config', 'fsdp', 'optim')",
        before=f"trained({text!r})",
        short=f"trained({short!r})",
        after=f"trained({fixed_text(text)!r})",
    )
    assert on_xla["renamed"] == {"bf16": True, "eval_strategy": "epoch", "debug": ["tpu_metrics_debug"], "steps": 25}
    assert on_xla["fsdp"]["xla_fsdp_config"] == {"compute_dtype": "torch.bfloat16"}
    assert on_xla["before"].startswith("`fused=True` requires all the params")
    assert on_xla["short"][1] > 2  # its graphs have the whole batches of `after` among them, and the small one
    assert on_xla["after"][1] < on_xla["short"][1]
    # Where the program ran as it was (on the host), the fixed one gives the same.
    on_host = result_of(on_host=True, before=f"trained({text!r})")
    assert on_xla["after"][2] == pytest.approx(on_host["before"][2], rel=1e-3, abs=1e-5)
    assert on_xla["after"][0] == pytest.approx(on_host["before"][0], rel=1e-3)
