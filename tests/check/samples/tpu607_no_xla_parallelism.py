"""Ways to share out a model that accelerate takes up on GPUs, and that of XLA."""

import torch_xla
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import Seq2SeqTrainingArguments, TrainingArguments

first = TrainingArguments("out", optim="adamw_torch_xla", dataloader_drop_last=True, deepspeed="zero2.json")  # TPU607: TrainingArguments gets deepspeed
second = Seq2SeqTrainingArguments(
    "out",
    optim="adamw_torch_xla",
    dataloader_drop_last=True,
    parallelism_config=ParallelismConfig(tp_size=4),  # TPU607: Seq2SeqTrainingArguments gets parallelism_config
)
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))  # TPU607: Accelerator gets deepspeed_plugin
sharded = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())  # TPU607: Accelerator gets fsdp_plugin
meshed = Accelerator(parallelism_config=ParallelismConfig(tp_size=4))  # TPU607: parallelism_config
plain = Accelerator(mixed_precision="bf16", fsdp_plugin=None)  # ok: TPU607
third = TrainingArguments(
    "out",
    optim="adamw_torch_xla",
    dataloader_drop_last=True,
    deepspeed=None,  # ok: TPU607
    fsdp="full_shard",
    fsdp_config={"xla": True, "xla_fsdp_v2": True},  # ok: TPU607
)
megatron = Accelerator(megatron_lm_plugin=object())  # TPU607: Accelerator gets megatron_lm_plugin
several = Accelerator(deepspeed_plugins={"a": DeepSpeedPlugin()})  # TPU607: Accelerator gets deepspeed_plugins
fourth = TrainingArguments("out", optim="adamw_torch_xla", dataloader_drop_last=True, parallelism_config={})  # TPU607: parallelism_config
plain = Accelerator()  # ok: TPU607
stepped = Accelerator(gradient_accumulation_steps=4)  # ok: TPU607
logged = Accelerator(log_with="tensorboard")  # ok: TPU607
