# %% [markdown]
# # TensorBoard: a `SummaryWriter` of an earlier cell, written to in the training and after it
# `torch.utils.tensorboard`; what is compared is what its file has in the end.
#
# Plain run: CPU. Compiles: 2.

# %%
import glob

import torch
from accelerate import Accelerator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(60)

# %%
x = torch.randn(40, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
writer = SummaryWriter("tensorboard")
writer.add_text("settings", "lr 0.1")


# %%
# %%tpu_train model
def train(model):
    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        writer.add_scalar("loss/train", loss.item(), step)
    writer.add_histogram("weight", model.weight, step)


# %%
writer.add_scalar("loss/all", nn.functional.mse_loss(model(x), y).item(), 5)
writer.close()
events = []
for path in sorted(glob.glob("tensorboard/*")):
    for event in EventFileLoader(path).Load():
        events += [(event.step, value.tag, list(value.tensor.float_val)) for value in event.summary.value]

# %%
compared = {
    "events": [list(event) for event in sorted(events)],
    "weights": model,
}
