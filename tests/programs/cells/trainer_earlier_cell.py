# %% [markdown]
# # Trainer made in an earlier cell
# The form of most Trainer notebooks: data, model, arguments and `Trainer(...)` in cells of their own, `trainer.train()`
# in the next, then evaluation, predictions and the loss curve from `trainer.state.log_history`.
#
# Plain run: CPU. Compiles: 17.

# %%
import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(0)


# %%
def make_rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        ids = torch.randint(4, 40, (8,), generator=generator)
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] > 20)})
    return rows


train_rows, eval_rows = make_rows(48, 1), make_rows(16, 2)

# %%
config = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=2,
)
model = BertForSequenceClassification(config)


# %%
def compute_metrics(prediction):
    return {"accuracy": float((np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean())}


args = TrainingArguments(
    "bert-tiny",
    learning_rate=1e-2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=3,
    optim="adamw_torch",
    report_to="none",
)
trainer = Trainer(model, args, train_dataset=train_rows, eval_dataset=eval_rows, compute_metrics=compute_metrics)

# %%
# %%tpu_train
trainer.train()

# %%
metrics = trainer.evaluate()
predictions = trainer.predict(eval_rows)
curve = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]

# %%
compared = {
    "metrics": [metrics["eval_loss"], metrics["eval_accuracy"]],
    "predictions": predictions.predictions,
    "curve": curve,
    "log_history": trainer.state.log_history,
    "global_step": trainer.state.global_step,
    "weights": model,
    "optimizer": trainer.optimizer,
    "learning rate": trainer.lr_scheduler.get_last_lr(),
    "same model": trainer.model is model,
}
