# %% [markdown]
# # Accelerate: the Accelerator of an earlier cell, with gradient accumulation
# `accelerator = Accelerator(gradient_accumulation_steps=2)` stands in the set-up cell, and the function reads it.
#
# Plain run: CPU. Compiles: 6.

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(8)

# %%
x = torch.randn(48, 6)
dataset = TensorDataset(x, (x[:, :2] ** 2).sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
losses, norms = [], []


# %%
# %%tpu_train model
def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model).training


# %%
compared = {
    "losses": losses,
    "norms": norms,
    "returned": _tpu.value,
    "device here": accelerator.device.type == next(model.parameters()).device.type,
    "weights": model,
}
