# %% [markdown]
# # Trainer in a training function, batches padded by a collator
# Everything that Trainer needs is made in the function, which returns the metrics; lengths differ, and the collator
# pads to a multiple of 8.
#
# Plain run: CPU. Compiles: 11.

# %%
import torch
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainingArguments, set_seed

set_seed(1)
config = DistilBertConfig(
    vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32, dropout=0.0, attention_dropout=0.0, num_labels=3
)
model = DistilBertForTokenClassification(config)

# %%
generator = torch.Generator().manual_seed(2)
sentences = [torch.randint(1, 30, (5 + i % 4,), generator=generator).tolist() for i in range(40)]
rows = [{"input_ids": ids, "labels": [i % 3 for i in ids]} for ids in sentences]


def collate(batch):
    longest = max(len(row["input_ids"]) for row in batch)
    length = -(-longest // 8) * 8
    padded = {"input_ids": [], "attention_mask": [], "labels": []}
    for row in batch:
        missing = length - len(row["input_ids"])
        padded["input_ids"].append(row["input_ids"] + [0] * missing)
        padded["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        padded["labels"].append(row["labels"] + [-100] * missing)
    return {name: torch.tensor(values) for name, values in padded.items()}


# %%
# %%tpu_train model rows[:32] rows[32:]
def fine_tune(model, train_rows, eval_rows):
    args = TrainingArguments(
        "ner",
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.01,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        logging_steps=1,
        save_strategy="no",
        optim="adamw_torch",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, args, train_dataset=train_rows, eval_dataset=eval_rows, data_collator=collate)
    output = trainer.train()
    return {"train": output.metrics, "evaluation": trainer.evaluate(), "history": trainer.state.log_history}


# %%
history = [entry["loss"] for entry in _tpu.value["history"] if "loss" in entry]
with torch.no_grad():
    logits = model.eval()(**{k: v for k, v in collate(rows[:4]).items() if k != "labels"}).logits

# %%
compared = {"returned": _tpu.value, "losses": history, "logits": logits, "weights": model}
