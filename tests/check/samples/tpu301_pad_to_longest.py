"""Padding of each batch to its own longest row, and padding that gives few shapes."""

import math
from functools import partial

import torch
import torch_xla
from datasets import load_dataset
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    BertTokenizerFast,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from transformers.utils import PaddingStrategy

LENGTH = 128
BUCKETS = (32, 64, 128)
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
tok = BertTokenizerFast.from_pretrained("bert-base-cased", use_fast=True)
processor = AutoProcessor.from_pretrained("openai/whisper-tiny")
raw = load_dataset("glue", "mrpc")


# -- functions for map ----------------------------------------------------------------------------------------------


def tokenize_function(examples):
    return tokenizer(examples["sentence1"], examples["sentence2"], padding=True, truncation=True)  # TPU301: padding=True


def tokenize_longest(examples):
    return tokenizer(  # TPU301: pads each batch to its longest row
        examples["sentence1"],
        padding="longest",
        max_length=LENGTH,
    )


def tokenize_in_multiples(examples):
    return tokenizer(examples["sentence1"], padding=True, pad_to_multiple_of=64)  # ok: TPU301


def tokenize_fixed(examples):
    return tokenizer(examples["sentence1"], padding="max_length", max_length=LENGTH, truncation=True)  # ok: TPU301


def tokenize_without_padding(examples):
    return tokenizer(examples["sentence1"], truncation=True, max_length=LENGTH)  # ok: TPU301


mapped = raw.map(tokenize_function, batched=True)
mapped = raw.map(tokenize_longest, batched=True, remove_columns=["idx"])
mapped = raw.map(tokenize_in_multiples, batched=True)
mapped = raw.map(tokenize_fixed, batched=True)
mapped = raw.map(tokenize_without_padding, batched=True)
mapped = raw.map(lambda rows: tok(rows["sentence1"], padding=PaddingStrategy.LONGEST), batched=True)  # TPU301: LONGEST
mapped = raw.map(lambda rows: tok(rows["sentence1"], padding=PaddingStrategy.MAX_LENGTH), batched=True)  # ok: TPU301
mapped = raw.map(partial(tokenizer, padding=True, truncation=True), batched=True, input_columns="sentence1")  # TPU301: longest


# -- transformers' collators ----------------------------------------------------------------------------------------

plain = DataCollatorWithPadding(tokenizer)  # TPU301: DataCollatorWithPadding
named = DataCollatorWithPadding(tokenizer=tokenizer, padding="longest", return_tensors="pt")  # TPU301: DataCollatorWithPadding
unset = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=None)  # TPU301: DataCollatorForTokenClassification
seq2seq = DataCollatorForSeq2Seq(tokenizer, model=None, padding=True)  # TPU301: DataCollatorForSeq2Seq
multiples = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=32)  # ok: TPU301
fixed = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=LENGTH)  # ok: TPU301
by_position = DataCollatorWithPadding(tokenizer, True, None, 64)  # ok: TPU301
half = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=(8 if LENGTH > 100 else None))  # ok: TPU301


# -- collate functions ----------------------------------------------------------------------------------------------


def collate_fn(examples):
    return tokenizer.pad(examples, return_tensors="pt")  # TPU301: tokenizer.pad pads each batch


def collate_pairs(batch):
    texts = [row["text"] for row in batch]
    encoded = tokenizer.batch_encode_plus(texts, padding="longest", return_tensors="pt")  # TPU301: batch_encode_plus
    return encoded["input_ids"], torch.tensor([row["label"] for row in batch])


def collate_fixed(examples):
    return tokenizer.pad(examples, padding="max_length", max_length=LENGTH, return_tensors="pt")  # ok: TPU301


class Collator:
    def __init__(self, processor):
        self.processor = processor

    def __call__(self, rows):
        sounds = [row["array"] for row in rows]
        return self.processor(sounds, sampling_rate=16_000, padding=True, return_tensors="pt")  # TPU301: self.processor


def collate_sequences(batch):
    ids = [torch.tensor(row) for row in batch]
    return pad_sequence(ids, batch_first=True)  # TPU301: pad_sequence


def collate_sequences_to_length(batch):
    padded = pad_sequence([torch.tensor(row) for row in batch], batch_first=True)  # ok: TPU301
    return torch.nn.functional.pad(padded, (0, LENGTH - padded.size(1)))


def collate_with_dummy(batch):
    rows = [torch.zeros(LENGTH), *[torch.tensor(row) for row in batch]]
    return pad_sequence([torch.zeros(LENGTH), *rows], batch_first=True)[1:]  # ok: TPU301


def collate_lists(batch):
    longest = max(len(ids) for ids in batch)  # TPU301: longest row
    return torch.tensor([ids + [0] * (longest - len(ids)) for ids in batch])


def collate_arrays(batch):
    width = max([row["ids"].shape[0] for row in batch])  # TPU301: longest row
    padded = torch.zeros((len(batch), width), dtype=torch.long)
    for number, row in enumerate(batch):
        padded[number, : row["ids"].shape[0]] = row["ids"]
    return padded


def collate_rounded(batch):
    longest = max(len(ids) for ids in batch)  # ok: TPU301
    length = math.ceil(longest / 64) * 64
    return torch.tensor([ids + [0] * (length - len(ids)) for ids in batch])


def collate_in_buckets(batch):
    longest = max(map(len, batch))  # ok: TPU301
    length = next(size for size in BUCKETS if size >= longest)
    return torch.tensor([ids + [0] * (length - len(ids)) for ids in batch])


def collate_by_device(examples, accelerator):
    if accelerator.distributed_type == "XLA":
        return tokenizer.pad(examples, padding="max_length", max_length=LENGTH, return_tensors="pt")  # ok: TPU301
    return tokenizer.pad(examples, padding="longest", return_tensors="pt")  # ok: TPU301


loaders = [
    DataLoader(raw["validation"], batch_size=8, collate_fn=one)
    for one in (collate_fn, collate_pairs, collate_fixed, collate_sequences, collate_lists, collate_arrays)
]


# -- once, or at each step ------------------------------------------------------------------------------------------

everything = tokenizer(raw["train"]["sentence1"], padding=True, truncation=True, return_tensors="pt")  # ok: TPU301
prompts = tokenizer(["A TPU", "A longer prompt"], padding=True, return_tensors="pt")  # ok: TPU301


def encode_all(texts):
    return tokenizer(texts, padding=True, return_tensors="pt")  # ok: TPU301


train_texts = encode_all(raw["train"]["sentence1"])
test_texts = encode_all(raw["test"]["sentence1"])


def predict(model, texts):
    device = torch_xla.device()
    for start in range(0, len(texts), 32):
        piece = tokenizer(texts[start : start + 32], padding=True, return_tensors="pt").to(device)  # TPU301: longest row
        model(**piece)
        torch_xla.sync()
