# %% [markdown]
# # Seq2SeqTrainer with early stopping, and predictions by generation
# A BART in small that learns to copy; `EarlyStoppingCallback` ends it, `predict_with_generate` in the cell after.
#
# Plain run: CPU. Compiles: 11.

# %%
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

set_seed(6)

# %%
config = BartConfig(
    vocab_size=20,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=16,
    dropout=0.0,
    attention_dropout=0.0,
    activation_dropout=0.0,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=2,
)
model = BartForConditionalGeneration(config)
source = torch.randint(3, 20, (24, 6))
rows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in source]

# %%
args = Seq2SeqTrainingArguments(
    "copying",
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=6,
    learning_rate=0.3,
    optim="sgd",
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    greater_is_better=False,
    predict_with_generate=True,
    generation_max_length=8,
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
)
stopping = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=0.2)
trainer = Seq2SeqTrainer(model, args, train_dataset=rows[:16], eval_dataset=rows[16:], callbacks=[stopping])

# %%
# %%tpu_train
trainer.train()

# %%
predictions = trainer.predict(rows[16:])

# %%
compared = {
    "stopped at": trainer.state.global_step,
    "best": trainer.state.best_metric,
    "log_history": trainer.state.log_history,
    "patience used": stopping.early_stopping_patience_counter,
    "predictions": predictions.predictions,
    "test loss": predictions.metrics["test_loss"],
    "weights": trainer.model,
}
