# %% [markdown]
# # Trainer: a causal language model with tied weights, gradient accumulation, and text made afterwards
# GPT-2 in small; `save_model` and greedy `generate` in cells below.
#
# Plain run: CPU. Compiles: 8.

# %%
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(5)

# %%
text = "the cat sat on the mat and the dog sat on the log while the cat and the dog sat still. " * 8
letters = sorted(set(text))
encoded = torch.tensor([letters.index(letter) for letter in text])
blocks = encoded[: len(encoded) // 16 * 16].view(-1, 16)
rows = [{"input_ids": block, "labels": block} for block in blocks[:32]]

# %%
config = GPT2Config(
    vocab_size=len(letters),
    n_positions=32,
    n_embd=16,
    n_layer=1,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
args = TrainingArguments(
    "gpt2-tiny",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    learning_rate=0.5,
    optim="sgd",
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(model=model, args=args, train_dataset=rows)

# %%
# %%tpu_train
trainer.train()

# %%
trainer.save_model("saved")
again = GPT2LMHeadModel.from_pretrained("saved")
prompt = encoded[None, :4]
made = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
)

# %%
compared = {
    "log_history": trainer.state.log_history,
    "made": made,
    "weights": model,
    "saved": again,
    "tied": model.lm_head.weight is model.transformer.wte.weight,
}
