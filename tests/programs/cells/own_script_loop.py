# %% [markdown]
# # A script's loop in a cell: globals, learning rate by hand, evaluation inside, checkpoint, resume
# The form of nanoGPT: settings and counters are names of the notebook, `get_lr`, `estimate_loss`, gradient accumulation
# by micro-steps, the best checkpoint as a dictionary on disk. The second cell goes on from the notebook's counters.
#
# Plain run: CPU. Compiles: 4 + 1, plain torch_xla: 4 + 0.

# %%
import math

import numpy as np
import torch
from torch import nn

batch_size, block_size, gradient_accumulation_steps = 4, 8, 2
max_iters, eval_interval, warmup_iters, lr_decay_iters = 4, 2, 2, 8
learning_rate, min_lr, grad_clip = 1e-2, 1e-3, 1.0
iter_num, best_val_loss, history = 0, 1e9, {"train": [], "val": [], "lr": []}
torch.manual_seed(1337)
rng = np.random.default_rng(1337)

# %%
data = np.tile(np.arange(11), 30)
splits = {"train": data[:250], "val": data[250:]}
try:
    import torch_xla
except ImportError:
    torch_xla = None


def get_batch(split, device):
    source = splits[split]
    starts = rng.integers(0, len(source) - block_size - 1, batch_size)
    x = torch.stack([torch.from_numpy(source[i : i + block_size]) for i in starts])
    y = torch.stack([torch.from_numpy(source[i + 1 : i + 1 + block_size]) for i in starts])
    return x.to(device), y.to(device)


def get_lr(iteration):
    if iteration < warmup_iters:
        return learning_rate * (iteration + 1) / (warmup_iters + 1)
    ratio = (iteration - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


# %%
class Bigrams(nn.Module):
    def __init__(self, vocabulary=11, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 2, padding=1)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, targets):
        x = self.mix(self.embedding(ids).transpose(1, 2))[:, :, : ids.shape[1]]
        logits = self.head(torch.tanh(x.transpose(1, 2)))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = Bigrams()
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=learning_rate
)


@torch.no_grad()
def estimate_loss(device, batches=2):
    model.eval()
    found = {
        split: float(np.mean([model(*get_batch(split, device))[1].item() for _ in range(batches)])) for split in splits
    }
    model.train()
    return found


# %%
# %%tpu_train
device = torch_xla.device() if torch_xla else torch.device("cpu")
model.to(device)
while iter_num < max_iters:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        estimated = estimate_loss(device)
        history["val"].append(estimated["val"])
        if estimated["val"] < best_val_loss:
            best_val_loss = estimated["val"]
            torch.save({"model": model.state_dict(), "iter_num": iter_num, "best_val_loss": best_val_loss}, "ckpt.pt")
    for micro_step in range(gradient_accumulation_steps):
        _, loss = model(*get_batch("train", device))
        (loss / gradient_accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if torch_xla:
        torch_xla.sync()
    history["train"].append(loss.item())
    history["lr"].append(lr)
    iter_num += 1

# %%
first = (iter_num, best_val_loss)
max_iters = 8

# %%
# %%tpu_train
device = torch_xla.device() if torch_xla else torch.device("cpu")
model.to(device)
while iter_num < max_iters:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    for micro_step in range(gradient_accumulation_steps):
        _, loss = model(*get_batch("train", device))
        (loss / gradient_accumulation_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if torch_xla:
        torch_xla.sync()
    history["train"].append(loss.item())
    history["lr"].append(lr)
    iter_num += 1

# %%
checkpoint = torch.load("ckpt.pt", map_location="cpu")
restored = Bigrams()
restored.load_state_dict(checkpoint["model"])

# %%
compared = {
    "first": first,
    "iterations": iter_num,
    "best": checkpoint["best_val_loss"],
    "history": history,
    "weights": model,
    "optimizer": optimizer,
    "checkpoint": restored,
    "next random number": rng.random(),
}
