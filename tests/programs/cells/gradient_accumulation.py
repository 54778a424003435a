# %% [markdown]
# # Gradient accumulation with a sum over ragged batches
# A collator pads sentences of different lengths to one length; the loss is a sum, divided by the number of tokens that
# the accumulated batches had; the last, incomplete window is used too. It fills a NumPy array of the notebook.
#
# Plain run: CPU. Compiles: 5.

# %%
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(41)


def get_device():
    try:
        import torch_xla
    except ImportError:
        return torch.device("cpu")
    return torch_xla.device()


def mark_step(device):
    if device.type == "xla":
        import torch_xla

        torch_xla.sync()


# %%
lengths = [3, 7, 5, 8, 2, 6, 4, 8, 7, 3, 5, 6, 8, 4]
sentences = [torch.randint(1, 15, (length,)) for length in lengths]


def collate(batch):
    batch = [*batch, torch.zeros(8, dtype=torch.long)]
    return pad_sequence(batch, batch_first=True)[:-1]


loader = DataLoader(sentences, batch_size=2, collate_fn=collate)
model = nn.Sequential(nn.Embedding(15, 12, padding_idx=0), nn.Linear(12, 15))
curve = np.full((2, 7), np.nan)


# %%
# %%tpu_train model accumulate=3
def train(model, accumulate):
    device = get_device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    for epoch in range(len(curve)):
        tokens = 0
        for number, ids in enumerate(loader):
            count = (ids[:, 1:] != 0).sum().item()
            tokens += count
            ids = ids.to(device)
            loss = nn.functional.cross_entropy(
                model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum"
            )
            loss.backward()
            if (number + 1) % accumulate == 0 or number + 1 == len(loader):
                for parameter in model.parameters():
                    parameter.grad /= tokens
                optimizer.step()
                optimizer.zero_grad()
                tokens = 0
            mark_step(device)
            curve[epoch, number] = loss.item() / count


# %%
best = np.nanmin(curve)

# %%
compared = {"curve": curve, "best": best, "weights": model}
