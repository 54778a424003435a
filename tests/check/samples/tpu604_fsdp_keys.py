"""FSDP of the Trainer on XLA."""

import json

from transformers import TrainingArguments
from transformers import TrainingArguments as Args

COMMON = dict(optim="adamw_torch_xla", dataloader_drop_last=True)
GUIDE = {"xla": True, "xla_fsdp_grad_ckpt": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16"}}  # ok: TPU604
WITHOUT_XLA = {
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "xla_fsdp_v2": True,  # TPU604: xla_fsdp_v2, but not "xla": True
    "xla_fsdp_grad_ckpt": True,
}


def found():
    TrainingArguments("out", fsdp="full_shard", fsdp_config=WITHOUT_XLA, **COMMON)
    TrainingArguments("out", fsdp_config={"xla": True, "xla_fsdp_v2": True}, **COMMON)  # TPU604: fsdp is not set
    TrainingArguments("out", fsdp="", fsdp_config={"xla": True}, **COMMON)  # TPU604: fsdp is not set
    TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla_fsdp_grad_ckpt": True}, **COMMON)  # TPU604: xla_fsdp_grad_ckpt, but not
    Args("out", fsdp=["full_shard"], fsdp_config={"xla": False, "xla_fsdp_v2": True}, **COMMON)  # TPU604: xla_fsdp_v2, but not "xla": True
    TrainingArguments("out", fsdp="full_shard auto_wrap", **COMMON)  # TPU604: without "xla": True
    TrainingArguments("out", fsdp=True, fsdp_config={"min_num_params": 2000}, **COMMON)  # TPU604: without "xla": True
    TrainingArguments("out", fsdp="shard_grad_op", fsdp_config={"xla": True}, **COMMON)  # TPU604: shard_grad_op
    TrainingArguments("out", fsdp="full_shard offload", fsdp_config={"xla": True}, **COMMON)  # TPU604: offload together with
    TrainingArguments("out", fsdp="full_shard", fsdp_config='{"xla_fsdp_v2": true}', **COMMON)  # TPU604: xla_fsdp_v2


def several_lines():
    return TrainingArguments(
        output_dir="out",
        fsdp="full_shard",
        fsdp_config={
            "xla": True,
            "min_num_params": 2000,
            "fsdp_transformer_layer_cls_to_wrap": ["BertLayer"],  # TPU604: min_num_params and transformer_layer_cls_to_wrap
            "activation_checkpointing": True,  # TPU604: activation_checkpointing, which is not read
            "fsdp_reshard_after_forward": False,  # TPU604: reshard_after_forward, which is not read
            "cpu_offload": True,  # TPU604: cpu_offload
        },
        **COMMON,
    )


def settings_of_the_other():
    return TrainingArguments(
        output_dir="out",
        fsdp="full_shard",
        fsdp_config={
            "xla": True,
            "xla_fsdp_v2": True,
            "xla_fsdp_settings": {"compute_dtype": "bfloat16"},  # TPU604: xla_fsdp_settings together with xla_fsdp_v2
        },
        **COMMON,
    )


def built_by_a_call():
    config = dict(xla_fsdp_settings={"compute_dtype": "bfloat16"}, min_num_params=0)  # TPU604: xla_fsdp_settings, but not
    return TrainingArguments("out", fsdp="full_shard", fsdp_config=config, **COMMON)


def fine(options, path, shard):
    TrainingArguments("out", fsdp="full_shard", fsdp_config=GUIDE, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla": True, "xla_fsdp_v2": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp=True, fsdp_config={"xla": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp=["full_shard", "auto_wrap"], fsdp_config={"xla": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config="fsdp_config.json", **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config=path, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config=json.load(open(path)), **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp=shard, fsdp_config={"xla": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla": options.xla, "xla_fsdp_v2": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config={**options, "xla_fsdp_v2": True}, **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="full_shard", fsdp_config='{"xla": true, "xla_fsdp_v2": true}', **COMMON)  # ok: TPU604
    TrainingArguments("out", fsdp="", fsdp_config=None, **COMMON)  # ok: TPU604


def switched_on_later():
    settings = {"xla_fsdp_grad_ckpt": True}  # ok: TPU604
    settings["xla"] = True
    return TrainingArguments("out", fsdp="full_shard", fsdp_config=settings, **COMMON)  # ok: TPU604


def one_wrapping():
    return TrainingArguments(
        output_dir="out",
        fsdp="full_shard",
        fsdp_config={
            "xla": True,
            "fsdp_version": 2,
            "min_num_params": 0,  # ok: TPU604
            "transformer_layer_cls_to_wrap": ["BertLayer"],  # ok: TPU604
            "activation_checkpointing": False,  # ok: TPU604
            "reshard_after_forward": True,  # ok: TPU604
        },
        **COMMON,
    )
