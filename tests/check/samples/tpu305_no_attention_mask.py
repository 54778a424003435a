"""Padded batches given to models with and without their attention_mask."""

import torch
import torch_xla
from accelerate import Accelerator, notebook_launcher
from torch.utils.data import DataLoader
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
)

tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased")
collator = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=128)
texts = ["A TPU", "A longer sentence for a TPU"]


def predict():
    device = torch_xla.device()
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased").to(device)
    encoder = AutoModel.from_pretrained("bert-base-cased")
    generator = AutoModelForCausalLM.from_pretrained("gpt2")
    encoded = tokenizer(texts, padding=True, return_tensors="pt").to(device)
    single = tokenizer("One text", return_tensors="pt")
    ids = encoded["input_ids"]
    model(encoded["input_ids"])  # TPU305: encoded["input_ids"]
    model(input_ids=encoded.input_ids)  # TPU305: encoded.input_ids
    model(ids)  # TPU305: ids
    encoder(encoded["input_ids"].to(device), output_hidden_states=True)  # TPU305: encoder gets
    generator.generate(encoded["input_ids"], max_new_tokens=8)  # TPU305: generator.generate
    generator.generate(inputs=encoded.input_ids, do_sample=False)  # TPU305: generator.generate
    model(**encoded)  # ok: TPU305
    model(encoded["input_ids"], encoded["attention_mask"])  # ok: TPU305
    model(input_ids=ids, attention_mask=encoded.attention_mask)  # ok: TPU305
    model(single["input_ids"])  # ok: TPU305
    generator.generate(**encoded, max_new_tokens=8)  # ok: TPU305
    generator.generate(ids, attention_mask=encoded["attention_mask"])  # ok: TPU305
    own = Classifier().to(device)
    own(encoded)  # ok: TPU305


def training_function(model):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(texts, batch_size=8, shuffle=True, drop_last=True, collate_fn=collator)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        outputs = model(batch["input_ids"], labels=batch["labels"])  # TPU305: batch["input_ids"]
        accelerator.backward(outputs.loss)
        optimizer.step()
        optimizer.zero_grad()
    for batch in loader:
        outputs = model(input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"])  # TPU305: batch["input_ids"]
        outputs = model(
            input_ids=batch["input_ids"],  # ok: TPU305
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
        )
        outputs = model(**batch)  # ok: TPU305
        accelerator.backward(outputs.loss)


notebook_launcher(training_function, (model,))


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, batch):
        return self.head(self.embedding(batch["input_ids"]).mean(dim=1))  # ok: TPU305

