# %% [markdown]
# # Accelerate: optimizer and scheduler of an earlier cell, trained in two cells
# The same cell is run twice, as people do; Adam and the cosine schedule go on where they were.
#
# Plain run: CPU. Compiles: 3 + 2, plain torch_xla: 3 + 0.

# %%
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(10)

# %%
tokens = torch.randint(0, 12, (40, 6))
dataset = TensorDataset(tokens[:, :-1], tokens[:, 1:])


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, vocabulary=12, width=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, ids):
        return self.output(self.body(self.embedding(ids))[0])


# %%
model = Tied()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
steps_done = 0


# %%
def train_epoch():
    global steps_done
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    prepared, opt, loader, plan = accelerator.prepare(
        model, optimizer, DataLoader(dataset, batch_size=8, shuffle=True), scheduler
    )
    total = 0.0
    for ids, following in loader:
        loss = nn.functional.cross_entropy(prepared(ids).flatten(0, 1), following.flatten())
        accelerator.backward(loss)
        opt.step()
        plan.step()
        opt.zero_grad()
        total += loss.item()
        steps_done += 1
    return total / len(loader)


# %%
# %tpu_train train_epoch

# %%
first = _tpu.value

# %%
# %tpu_train train_epoch

# %%
compared = {
    "losses": [first, _tpu.value],
    "steps": steps_done,
    "weights": model,
    "optimizer": optimizer,
    "learning rate": scheduler.get_last_lr(),
    "tied": model.output.weight is model.embedding.weight,
}
