"""{"compiles": 8, "recompiles": [
  {"cause": "early-read", "mentions": ["forward of BertForSequenceClassification"]},
  {"cause": "new-part", "mentions": ["training step of BertForSequenceClassification", "step of AdamW"]},
  {"cause": "optimizer-state"},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["between two steps"]}
], "reads": [{"mentions": ["train"]}]}"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def train():
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        num_labels=2,
    )
    ids = torch.randint(1, 50, (40, 8))
    rows = [{"input_ids": ids[i], "attention_mask": torch.ones(8).long(), "labels": i % 2} for i in range(40)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            num_train_epochs=2,
            optim="adamw_torch",
            logging_steps=2,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
        trainer.train()  # site # read
