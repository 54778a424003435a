"""Batch sizes of training and evaluation, in torch."""

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainingArguments, TrainingArguments

MAX_GPU_BATCH_SIZE = 16
EVAL_BATCH_SIZE = 32
datasets = load_dataset("glue", "mrpc")
given = {"optim": "adamw_torch_xla", "dataloader_drop_last": True}


def get_dataloaders(accelerator: Accelerator, batch_size: int = 16):
    train_dataloader = DataLoader(datasets["train"], shuffle=True, batch_size=MAX_GPU_BATCH_SIZE, drop_last=True)
    eval_dataloader = DataLoader(datasets["validation"], shuffle=False, batch_size=EVAL_BATCH_SIZE)  # TPU409: Evaluation has a batch size of 32, training has 16.
    return accelerator.prepare(train_dataloader, eval_dataloader)


def literal_sizes(train_set, test_set):
    train_loader = DataLoader(train_set, 32, shuffle=True, drop_last=True)
    val_loader = DataLoader(datasets["validation"], 64)  # TPU409: Evaluation has a batch size of 64, training has 32.
    test_loader = DataLoader(test_set, 1)  # TPU409: a batch size of 1
    return train_loader, val_loader, test_loader


def through_a_config(train_set, val_set):
    config = {"batch_size": 8, "eval_batch_size": 16}
    loader = torch.utils.data.DataLoader(train_set, batch_size=config["batch_size"], drop_last=True)
    val_dl = torch.utils.data.DataLoader(val_set, batch_size=config["batch_size"] * 2)  # TPU409: Evaluation has a batch size of 16
    return loader, val_dl


def equal(train_set, val_set, batch_size):
    train_loader = DataLoader(train_set, batch_size=24, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=24)  # ok: TPU409
    return train_loader, val_loader


def unknown(train_set, val_set, batch_size):
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=batch_size * 2)  # ok: TPU409
    return train_loader, val_loader


def two_for_training(train_set, pretrain_set, eval_set):
    train_loader = DataLoader(train_set, batch_size=32, drop_last=True)
    pretrain_loader = DataLoader(pretrain_set, batch_size=128, drop_last=True)  # ok: TPU409
    eval_loader = DataLoader(eval_set, batch_size=32)  # ok: TPU409
    return train_loader, pretrain_loader, eval_loader


arguments = TrainingArguments("out", per_device_train_batch_size=8, per_device_eval_batch_size=16, **given)  # TPU409: a batch size of 16
seq2seq = Seq2SeqTrainingArguments("out", per_device_train_batch_size=8, per_device_eval_batch_size=EVAL_BATCH_SIZE, **given)  # TPU409: a batch size of 32
same = TrainingArguments("out", per_device_train_batch_size=8, per_device_eval_batch_size=8, **given)  # ok: TPU409
training_only = TrainingArguments("out", per_device_train_batch_size=64, **given)  # ok: TPU409
by_default = TrainingArguments("out", per_device_eval_batch_size=64, **given)  # ok: TPU409
