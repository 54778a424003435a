# %% [markdown]
# # Accelerate: everything prepared in an earlier cell, the loop as plain statements
# `accelerator.prepare(model, optimizer, loader, scheduler)` in one cell; form 3, the loop, in the next; then the loop's
# own names (`loss`, `epoch`) are used.
#
# Plain run: CPU. Compiles: 3.

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)

# %%
x = torch.randn(64, 8)
y = (x.sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)

# %%
accelerator = Accelerator()
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
loss_log = []

# %%
# %%tpu_train
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        loss_log.append(loss.item())

# %%
compared = {
    "epoch": epoch,
    "loss": loss,
    "losses": loss_log,
    "weights": accelerator.unwrap_model(model),
    "optimizer": optimizer,
    "learning rate": scheduler.get_last_lr(),
}
