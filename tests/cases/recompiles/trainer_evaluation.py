"""{"compiles": 19, "recompiles": [
  {"cause": "new-part", "mentions": ["between two steps", "_set_sync_gradients"], "branch": "TPU"},
  {"cause": "early-read", "mentions": ["forward of BertForSequenceClassification"]},
  {"cause": "new-part", "mentions": ["training step of BertForSequenceClassification"]},
  {"cause": "optimizer-state"},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["logging"]},
  {"cause": "new-part", "mentions": ["between two steps"]},
  {"cause": "new-part", "mentions": ["evaluation: forward of BertForSequenceClassification"]},
  {"cause": "new-part", "mentions": ["evaluation, transformers/trainer.py line"]},
  {"cause": "new-part", "mentions": ["evaluation, transformers/trainer.py line"]},
  {"cause": "new-part", "mentions": ["evaluation, transformers/trainer.py line"]},
  {"cause": "new-part", "mentions": ["evaluation, transformers/trainer.py line"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]},
  {"cause": "live-tensors", "mentions": ["evaluation results", "eval_accumulation_steps=1"]}
], "reads": [{"mentions": ["train"]}]}"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def collate(rows):
    longest = -(-max(len(ids) for ids, _ in rows) // 16) * 16
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([label for _, label in rows])}


def accuracy(found):
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


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
    rows = [([1 + i % 40] * (4 + i % 12), i % 2) for i in range(40)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            num_train_epochs=2,
            optim="adamw_torch",
            warmup_steps=2,
            logging_steps=4,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(
            BertForSequenceClassification(config),
            arguments,
            train_dataset=rows,
            eval_dataset=rows[:24],
            data_collator=collate,
            compute_metrics=accuracy,
        )
        trainer.train()  # site # read
