"""Masked language modelling on a TPU: labels and inputs changed through masks."""

import numpy as np
import torch
import torch.nn as nn
import torch_xla
from accelerate import Accelerator
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
PROBABILITY = 0.15
IGNORED = -100


def masked(inputs: torch.Tensor, special: torch.Tensor):
    labels = inputs.clone()
    chosen = torch.bernoulli(torch.full(labels.shape, PROBABILITY, device=labels.device)).bool() & ~special.bool()
    labels[~chosen] = -100  # TPU202: labels[~chosen]
    replaced = torch.rand(labels.shape, device=labels.device) < 0.8
    inputs[replaced & chosen] = tokenizer.mask_token_id  # TPU202: depend on the values of replaced & chosen
    words = torch.randint(len(tokenizer), labels.shape, device=labels.device)
    random = chosen & ~replaced
    inputs[random] = words[random]  # TPU202: inputs[random]
    return inputs, labels


def masked_static(inputs: torch.Tensor, special: torch.Tensor):
    labels = inputs.clone()
    chosen = torch.bernoulli(torch.full(labels.shape, PROBABILITY, device=labels.device)).bool() & ~special.bool()
    labels.masked_fill_(~chosen, -100)  # ok: TPU202
    inputs = torch.where(chosen, tokenizer.mask_token_id, inputs)  # ok: TPU202
    labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)  # ok: TPU202
    return inputs, labels


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = size**-0.5
        self.query = nn.Linear(size, size)
        self.register_buffer("table", torch.zeros(size, size))
        corner = torch.ones(size, size).triu(1).bool()
        self.table[corner] = float("-inf")  # ok: TPU202

    def forward(self, x, attention_mask, position: int = 0):
        scores = self.query(x) @ x.transpose(-2, -1) * self.scale
        scores[attention_mask == 0] = float("-inf")  # TPU202: scores[attention_mask == 0]
        scores[:, attention_mask[0].bool()] += 1.0  # TPU202: scores[:, attention_mask[0].bool()]
        scores[:, 0] = 0.0  # ok: TPU202
        scores[..., position] = 1.0  # ok: TPU202
        scores[:, 1:] = scores[:, :-1].clone()  # ok: TPU202
        scores[torch.isnan(scores)] = 0  # TPU202: torch.isnan(scores)
        scores.index_put_((scores < -1e4,), torch.tensor(0.0))  # TPU202: index_put_
        return scores.softmax(-1)


def main(dataset):
    accelerator = Accelerator()
    model = AutoModelForMaskedLM.from_pretrained("bert-base-uncased")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    history = {}
    table = np.zeros(16)
    for batch in loader:
        inputs, labels = masked(batch["input_ids"], batch["special_tokens_mask"])
        labels[labels == 0] = -100  # TPU202: labels == 0
        labels[labels == tokenizer.pad_token_id] = IGNORED  # TPU202: tokenizer.pad_token_id
        rows = torch.arange(labels.shape[0], device=labels.device)
        labels[rows, 0] = -100  # ok: TPU202
        labels[0] = -100  # ok: TPU202
        batch["labels"] = labels  # ok: TPU202
        outputs = model(input_ids=inputs, attention_mask=batch["attention_mask"], labels=labels)
        accelerator.backward(outputs.loss)
        for parameter in model.parameters():
            parameter.grad.data[parameter.grad.abs() > 1.0] = 1.0  # TPU202: parameter.grad.data
        optimizer.step()
        optimizer.zero_grad()
        history["last"] = outputs.loss  # ok: TPU202
        table[table > 3] = 0  # ok: TPU202
    return history


def collate(samples):
    ids = torch.stack([one["input_ids"] for one in samples])
    labels = ids.clone()
    labels[labels == tokenizer.pad_token_id] = -100  # ok: TPU202
    return {"input_ids": ids, "labels": labels}
