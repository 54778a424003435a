"""The collator that Trainer makes for itself."""

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

tokenizer = AutoTokenizer.from_pretrained("distilbert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased")
arguments = TrainingArguments("out", optim="adamw_torch_xla", dataloader_drop_last=True)


def tokenize(rows):
    return tokenizer(rows["text"], truncation=True)  # ok: TPU301


data = load_dataset("imdb").map(tokenize, batched=True)
by_default = Trainer(model, arguments, train_dataset=data["train"], processing_class=tokenizer)  # TPU301: no data_collator
with_none = Trainer(  # TPU301: no data_collator
    model=model,
    args=arguments,
    data_collator=None,
    train_dataset=data["train"],
    tokenizer=tokenizer,
)
collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)  # ok: TPU301
in_multiples = Trainer(  # ok: TPU301
    model, arguments, data_collator=collator, train_dataset=data["train"], processing_class=tokenizer
)
without_tokenizer = Trainer(model, arguments, train_dataset=data["train"])  # ok: TPU301
stacked = Trainer(  # ok: TPU301
    model, arguments, default_data_collator, train_dataset=data["train"], processing_class=tokenizer
)
