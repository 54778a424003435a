"""Weights and tensors of float16 on a TPU."""

import numpy as np
import torch
import torch.nn as nn
import torch_xla
import torch_xla.core.xla_model as xm
from transformers import AutoModel, AutoTokenizer

DTYPE = torch.half
device = xm.xla_device()
tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
encoder = AutoModel.from_pretrained("bert-base-uncased").half().to(device)  # TPU503: is converted to float16
encoder = encoder.to(torch.float16)  # TPU503: encoder is converted to float16
encoder.to(device, dtype=DTYPE)  # TPU503: encoder is converted to float16
encoder = encoder.to(torch.bfloat16).to(device)  # ok: TPU503
encoder = encoder.bfloat16()  # ok: TPU503
encoder = encoder.to(device)  # ok: TPU503


class Recipe:
    """Of biscuits: what it halves is no tensor."""

    def __init__(self, grams):
        self.grams = grams

    def half(self):
        return Recipe(self.grams / 2)


small = Recipe(300).half()  # ok: TPU503
whole, rest = "half".split("l"), tokenizer("a half").to("cpu")  # ok: TPU503
features = np.zeros((4, 8)).astype(np.float16)  # ok: TPU503
np.save("features.npy", features.astype("float16"))  # ok: TPU503


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.half_size = size // 2  # ok: TPU503

    def forward(self, x, mask):
        bias = torch.zeros(x.shape, dtype=torch.float16, device=x.device)  # TPU503: torch.zeros creates a float16 tensor
        x = x.half()  # TPU503: x is converted to float16
        scores = self.linear(x).type(torch.float16)  # TPU503: float16
        scores = scores.to(dtype=torch.half)  # TPU503: scores is converted to float16
        half = x[:, : self.half_size]  # ok: TPU503
        wide = scores.float()  # ok: TPU503
        other = scores.to(mask.dtype)  # ok: TPU503
        is_half = x.dtype == torch.float16  # ok: TPU503
        lowest = torch.finfo(torch.float16).min  # ok: TPU503
        return scores + bias, half, wide, other, is_half, lowest


def batch_of(ids, memory=None):
    table = torch.tensor(ids, dtype=torch.float16).to(device)  # TPU503: torch.tensor creates a float16 tensor
    same = torch.tensor(ids, dtype=torch.bfloat16).to(device)  # ok: TPU503
    return table, same


def saved(model):
    return {name: value.cpu().half() for name, value in model.state_dict().items()}  # ok: TPU503


def loaded(model, path):
    if torch.cuda.is_available():
        return model.half()  # ok: TPU503
    return model.to(torch.bfloat16)  # ok: TPU503


def same_dtype(scores):
    weights = scores.float().softmax(-1)
    if scores.dtype == torch.float16:
        weights = weights.to(torch.float16)  # ok: TPU503
    return weights


class Images(torch.utils.data.Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.tensor(self.images[index], dtype=torch.float16)  # ok: TPU503


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size, dtype=torch.float16))  # TPU503: torch.ones creates a float16 tensor
        self.table = torch.arange(size, dtype=torch.long)  # ok: TPU503


def step(batch, criterion):
    images = batch["images"].to(device, torch.float16)  # TPU503: batch["images"] is converted to float16
    labels = batch["labels"].to(device)  # ok: TPU503
    return criterion(images, labels)
