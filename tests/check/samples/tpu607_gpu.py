"""DeepSpeed in a program that says nothing of XLA is for GPUs."""

from accelerate import Accelerator, DeepSpeedPlugin
from transformers import TrainingArguments

arguments = TrainingArguments("out", deepspeed="zero2.json")  # ok: TPU607
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))  # ok: TPU607
