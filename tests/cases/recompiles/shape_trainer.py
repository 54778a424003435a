"""{"compiles": 5, "recompiles": [
  {"cause": "early-read", "mentions": ["forward of BertForSequenceClassification", "masking_utils.py line"]},
  {"cause": "new-part", "mentions": ["training step of BertForSequenceClassification", "step of SGD"]},
  {"cause": "input-shape", "mentions": ["12", "8"]},
  {"cause": "input-shape", "mentions": ["12", "8"]}
], "reads": [{"mentions": ["train"]}]}"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def collate(rows):
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([label for _, label in rows])}


def train():
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        num_labels=2,
        attn_implementation="eager",
    )
    rows = [([1 + i % 40] * length, i % 2) for length in (8, 8, 8, 12, 8, 12) for i in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            optim="sgd",
            lr_scheduler_type="constant",
            train_sampling_strategy="sequential",
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows, data_collator=collate)
        trainer.train()  # site # read
