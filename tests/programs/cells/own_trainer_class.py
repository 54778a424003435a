# %% [markdown]
# # A Trainer class with callbacks, trained by its method
# The form of minGPT: a config object, callbacks by event, counters as attributes; `%tpu_train trainer.run`, then a
# sample drawn from the model.
#
# Plain run: CPU. Compiles: 2.

# %%
import math
from collections import defaultdict
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

try:
    import torch_xla
except ImportError:
    torch_xla = None
torch.manual_seed(30)


# %%
class SortDataset(Dataset):
    """Sequences of digits, to be continued by the same digits in order."""

    def __init__(self, count, length=4, digits=3):
        inputs = torch.randint(0, digits, (count, length))
        self.rows = torch.cat([inputs, inputs.sort(dim=1).values], dim=1)
        self.length = length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index, :-1].clone(), self.rows[index, 1:].clone()
        y[: self.length - 1] = -1
        return x, y


# %%
class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :time, :time] == 0, float("-inf")).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=3, width=12, length=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.block = Block(width, 2, length)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.block(x))
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


# %%
class Trainer:
    def __init__(self, config, model, dataset):
        self.config, self.model, self.dataset = config, model, dataset
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
        self.callbacks = defaultdict(list)
        self.iter_num, self.loss = 0, None

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def pick_device(self):
        if self.config.device != "auto":
            return torch.device(self.config.device)
        return torch_xla.device() if torch_xla else torch.device("cpu")

    def run(self):
        device = self.pick_device()
        self.model.to(device).train()
        loader = DataLoader(self.dataset, batch_size=self.config.batch_size, shuffle=True)
        while self.iter_num < self.config.max_iters:
            for x, y in loader:
                _, self.loss = self.model(x.to(device), y.to(device))
                self.model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
                self.optimizer.step()
                if device.type == "xla":
                    torch_xla.sync()
                self.iter_num += 1
                for callback in self.callbacks["on_batch_end"]:
                    callback(self)
                if self.iter_num >= self.config.max_iters:
                    break


# %%
config = SimpleNamespace(device="auto", learning_rate=1e-2, batch_size=8, max_iters=12, grad_norm_clip=1.0)
model = GPT()
trainer = Trainer(config, model, SortDataset(64))
curve = []
trainer.add_callback("on_batch_end", lambda trainer: curve.append((trainer.iter_num, trainer.loss.item())))

# %%
# %tpu_train trainer.run

# %%
model.eval()
ids = torch.tensor([[2, 0, 1, 0]])
with torch.no_grad():
    for _ in range(4):
        logits, _ = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)

# %%
compared = {
    "curve": curve,
    "iterations": trainer.iter_num,
    "last loss": trainer.loss,
    "sample": ids,
    "weights": trainer.model,
    "optimizer": trainer.optimizer,
    "same model": trainer.model is model,
}
