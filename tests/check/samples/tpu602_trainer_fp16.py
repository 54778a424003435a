"""Mixed precision of the Trainer."""

import torch
import transformers
from transformers import Seq2SeqTrainingArguments, TrainingArguments

HALF = True
FULL = {"fp16_full_eval": True, "output_dir": "out", "optim": "adamw_torch", "dataloader_drop_last": True}  # TPU602: fp16_full_eval=True
BF16 = {"output_dir": "out", "optim": "adamw_torch", "dataloader_drop_last": True, "bf16": True, "fp16": False}  # ok: TPU602


def found():
    return [
        TrainingArguments("out", optim="adamw_torch_xla", fp16=True, dataloader_drop_last=True),  # TPU602: fp16=True
        transformers.TrainingArguments("out", optim="sgd", fp16=HALF, dataloader_drop_last=True),  # TPU602: enables fp16
        TrainingArguments("out", optim="sgd", fp16_full_eval=True, dataloader_drop_last=True),  # TPU602: fp16_full_eval=True
        TrainingArguments(**FULL),
        TrainingArguments(**{"output_dir": "out", "optim": "sgd", "dataloader_drop_last": True, "fp16": True}),  # TPU602: fp16=True
    ]


def several_lines():
    return Seq2SeqTrainingArguments(
        output_dir="out",
        optim="adamw_torch_xla",
        fp16=True,  # TPU602: Seq2SeqTrainingArguments enables fp16
        dataloader_drop_last=True,
        predict_with_generate=True,
    )


def arguments(half):
    return TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True, fp16=half)  # TPU602: fp16=True


arguments(True)


def both():
    return TrainingArguments(
        "out",
        optim="adamw_torch",
        dataloader_drop_last=True,
        bf16=False,  # ok: TPU602
        fp16=True,  # TPU602: fp16=True
        fp16_full_eval=True,  # TPU602: fp16_full_eval=True
    )


def switched_on_later(on_gpu):
    args = TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True)
    args.fp16 = True  # TPU602: args.fp16 is enabled
    args.bf16 = True  # ok: TPU602
    if on_gpu:
        args.fp16 = True  # ok: TPU602
    return args


def fine(options, use_bf16):
    return [
        TrainingArguments("out", optim="adamw_torch", bf16=True, dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", bf16_full_eval=True, dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", fp16=False, dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", fp16=torch.cuda.is_available(), dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", fp16=options.fp16, dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", fp16=not use_bf16, bf16=use_bf16, dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True),  # ok: TPU602
        TrainingArguments("out", use_cpu=True, fp16=True),  # ok: TPU602
        TrainingArguments(**BF16),  # ok: TPU602
    ]
