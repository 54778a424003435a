# %% [markdown]
# # TRL: an SFTTrainer of an earlier cell, with prompts and completions
# GPT-2 in small and a tokenizer of words; gradient checkpointing is on, as it is by TRL's default.
#
# Plain run: CPU. Compiles: 18, plain torch_xla: fails.

# %%
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(80)

# %%
animals, places = ["cat", "dog", "cow", "hen"], ["mat", "log", "hill", "roof"]
words = ["<pad>", "<end>", "<unknown>", "where", "is", "the", "on", *animals, *places]
tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
)
dataset = Dataset.from_list(
    [
        {"prompt": f"where is the {animal}", "completion": f" on the {place}"}
        for animal, place in zip(animals * 4, places * 4)
    ]
)

# %%
config = GPT2Config(
    vocab_size=len(words),
    n_positions=16,
    n_embd=16,
    n_layer=2,
    n_head=2,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
args = SFTConfig(
    "sft",
    per_device_train_batch_size=4,
    num_train_epochs=3,
    learning_rate=0.5,
    optim="sgd",
    bf16=False,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = SFTTrainer(GPT2LMHeadModel(config), args, train_dataset=dataset, processing_class=tokenizer)

# %%
# %%tpu_train
trainer.train()

# %%
model = trainer.model
prompt = tokenizer("where is the cow", return_tensors="pt")
answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)

# %%
compared = {
    "log_history": trainer.state.log_history,
    "answer": tokenizer.decode(answer[0]),
    "weights": model,
    "tied": model.lm_head.weight is model.transformer.wte.weight,
}
