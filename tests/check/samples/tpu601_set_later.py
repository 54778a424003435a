"""An optimizer that is set after the arguments were made."""

from transformers import Trainer, TrainingArguments


def mended(model, train):
    args = TrainingArguments("out", dataloader_drop_last=True)  # ok: TPU601
    args.optim = "adamw_torch_xla"  # ok: TPU601
    Trainer(model, args, train_dataset=train).train()


def made_worse(model, train):
    args = TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True)
    args.optim = "adamw_torch_fused"  # TPU601: args.optim is set to adamw_torch_fused
    Trainer(model, args, train_dataset=train).train()
