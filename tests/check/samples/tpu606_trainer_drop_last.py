"""The last batch of an epoch."""

import transformers
from datasets import load_dataset
from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments

CUT = True
train = load_dataset("nyu-mll/glue", "mrpc", split="train")


def found(model):
    first = TrainingArguments("out", optim="adamw_torch")  # TPU606: does not set dataloader_drop_last
    second = TrainingArguments(  # TPU606: the last batch of an epoch may be smaller
        output_dir="out",
        optim="adamw_torch_xla",
        per_device_train_batch_size=16,
        num_train_epochs=3,
    )
    third = transformers.TrainingArguments("out", optim="adamw_torch", max_steps=100)  # TPU606: dataloader_drop_last
    fourth = Seq2SeqTrainingArguments("out", optim="adamw_torch", dataloader_drop_last=False)  # TPU606: sets dataloader_drop_last=False
    fifth = TrainingArguments(**{"output_dir": "out", "optim": "adamw_torch"})  # TPU606: does not set dataloader_drop_last
    sixth = TrainingArguments("out", optim="adamw_torch", do_train=True, do_eval=True)  # TPU606: does not set
    for args in (first, second, third, fourth, fifth, sixth):
        Trainer(model, args, train_dataset=train).train()


def of_uneven_length(model):
    args = TrainingArguments("out", optim="adamw_torch", per_device_train_batch_size=16)  # TPU606: does not set
    Trainer(model=model, args=args, train_dataset=train.select(range(1000))).train()


def of_unknown_batch_size(model):
    args = TrainingArguments("out", optim="adamw_torch", auto_find_batch_size=True)  # TPU606: does not set
    Trainer(model=model, args=args, train_dataset=train.select(range(1024))).train()


def of_whole_batches(model):
    args = TrainingArguments("out", optim="adamw_torch", per_device_train_batch_size=16)  # ok: TPU606
    Trainer(model=model, args=args, train_dataset=train.select(range(1024))).train()


def of_a_slice(model):
    args = TrainingArguments("out", optim="adamw_torch")  # ok: TPU606
    some = load_dataset("nyu-mll/glue", "mrpc", split="train[:800]")
    Trainer(model=model, args=args, train_dataset=some).train()


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        return make_loader(self.train_dataset, drop_last=True)


def make_loader(data, drop_last):
    return [data, drop_last]


def with_own_loader(model):
    args = TrainingArguments("out", optim="adamw_torch")  # ok: TPU606
    OwnLoader(model=model, args=args, train_dataset=train).train()


def fine(options, **more):
    return [
        TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True),  # ok: TPU606
        TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=CUT),  # ok: TPU606
        TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=options.drop_last),  # ok: TPU606
        TrainingArguments("out", optim="adamw_torch", **more),  # ok: TPU606
        TrainingArguments("out", use_cpu=True),  # ok: TPU606
        TrainingArguments(**{"output_dir": "out", "optim": "adamw_torch", "dataloader_drop_last": True}),  # ok: TPU606
    ]
