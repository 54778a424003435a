"""Settings of XLA's FSDP, known and unknown."""

import torch
from transformers import TrainingArguments

COMMON = dict(optim="adamw_torch_xla", dataloader_drop_last=True, fsdp="full_shard")
SETTINGS = {
    "compute_dtype": "bfloat16",  # ok: TPU605
    "buffer_dtype": "bfloat16",  # ok: TPU605
    "min_split_size_mb": 64,  # TPU605: min_split_size_mb in xla_fsdp_settings
    "pin_layout_in_collective_ops": True,  # ok: TPU605
}


def found():
    TrainingArguments("out", fsdp_config={"xla": True, "xla_fsdp_settings": SETTINGS}, **COMMON)
    TrainingArguments("out", fsdp_config={"xla": True, "min_split_size_mb": 64}, **COMMON)  # TPU605: not a key of fsdp_config
    TrainingArguments(
        "out",
        fsdp_config={
            "xla": True,
            "xla_fsdp_v2": True,
            "xla_fsdp_settings": {
                "min_split_size_mb": 64,  # TPU605: min_split_size_mb
            },
        },
        **COMMON,
    )
    TrainingArguments("out", fsdp_config={"xla": True, "xla_fsdp_settings": {"auto_wrap_policy": None}}, **COMMON)  # TPU605: auto_wrap_policy
    TrainingArguments(
        "out",
        fsdp_config={
            "xla": True,
            "xla_fsdp_grad_checkpoint": True,  # TPU605: xla_fsdp_grad_checkpoint is not a key
            "compute_dtype": "bfloat16",  # TPU605: outside xla_fsdp_settings
            "fsdp_min_split_size_mb": 3,  # TPU605: min_split_size_mb
            "xla_fsdp_settings": {
                "flatten_parameter": True,  # TPU605: flatten_parameter
                "xla_fsdp_grad_ckpt": True,  # TPU605: xla_fsdp_grad_ckpt in xla_fsdp_settings
                "compute_dtype": torch.bfloat16,  # TPU605: torch.bfloat16
                "buffer_dtype": "torch.float32",  # TPU605: not by the name of the dtype
            },
        },
        **COMMON,
    )


def in_a_name():
    inner = dict(shard_param_on_dim_0=True, min_split_size_mb=32)  # TPU605: min_split_size_mb
    config = dict(xla=True, xla_fsdp_settings=inner)
    return TrainingArguments("out", fsdp_config=config, **COMMON)


def as_json():
    return TrainingArguments(
        "out",
        fsdp_config='{"xla": true, "xla_fsdp_settings": {"min_split_size_mb": 1}}',  # TPU605: min_split_size_mb
        **COMMON,
    )


def fine(options):
    TrainingArguments(
        "out",
        fsdp_config={
            "xla": True,  # ok: TPU605
            "xla_fsdp_grad_ckpt": True,  # ok: TPU605
            "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],  # ok: TPU605
            "fsdp_version": 2,  # ok: TPU605
            "xla_fsdp_settings": {
                "reshard_after_forward": False,  # ok: TPU605
                "flatten_parameters": True,  # ok: TPU605
                "fp32_reduce_scatter": True,  # ok: TPU605
                "shard_param_on_dim_0": True,  # ok: TPU605
                "reduce_scatter_bucket_size_mb": 16,  # ok: TPU605
                "compute_dtype": options.dtype,  # ok: TPU605
            },
        },
        **COMMON,
    )
    TrainingArguments("out", fsdp_config={"xla": True, "xla_fsdp_settings": options.settings}, **COMMON)  # ok: TPU605
    allocator = {"min_split_size_mb": 64}  # ok: TPU605
    return allocator
