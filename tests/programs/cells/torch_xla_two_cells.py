# %% [markdown]
# # torch_xla: model, Adam, scheduler and averaged weights of an earlier cell, trained in two cells
# `model.to(device)` in the function, `AveragedModel` from torch.optim.swa_utils; the second cell goes on exactly where
# the first ended. The program picks the CPU where there is no torch_xla.
#
# Plain run: CPU. Compiles: 6 + 4, plain torch_xla: 6 + 0.

# %%
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(24)


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
x = torch.randn(10, 16, 6)
y = torch.stack([x[:, :, 0] * x[:, :, 1], x[:, :, 2]], dim=2)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
averaged = AveragedModel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
log = []


# %%
def train_steps(model, steps):
    device = get_device()
    model.to(device)
    averaged.to(device)
    for _ in range(steps):
        index = len(log) % len(x)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[index].to(device)), y[index].to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        averaged.update_parameters(model)
        mark_step(device)
        log.append({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]})


# %%
# %tpu_train train_steps model 5

# %%
# %tpu_train train_steps model 5

# %%
compared = {"log": log, "weights": model, "averaged": averaged, "optimizer": optimizer, "scheduler": scheduler}
