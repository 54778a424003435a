"""Language modelling over blocks of one length: there is nothing left to pad."""

from datasets import load_dataset
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

block_size = 128
tokenizer = AutoTokenizer.from_pretrained("gpt2")


def tokenize(rows):
    return tokenizer(rows["text"])


def group_texts(rows):
    joined = {key: sum(values, []) for key, values in rows.items()}
    total = len(joined["input_ids"]) // block_size * block_size
    blocks = {key: [ids[i : i + block_size] for i in range(0, total, block_size)] for key, ids in joined.items()}
    blocks["labels"] = blocks["input_ids"].copy()
    return blocks


data = load_dataset("wikitext", "wikitext-2-raw-v1").map(tokenize, batched=True).map(group_texts, batched=True)
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)  # ok: TPU301
