# %% [markdown]
# # torch_xla: a function with its device, a history of the notebook, evaluation afterwards
# `xm.optimizer_step`, `torch_xla.sync()`, and a list that the function appends to; `.cpu()` for the evaluation.
#
# Plain run: XLA:CPU. Compiles: 2.

# %%
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(20)

# %%
x = torch.rand(96, 1, 6, 6)
y = (x.flatten(1)[:, :18].sum(1) > x.flatten(1)[:, 18:].sum(1)).long()
train_data, test_x, test_y = TensorDataset(x[:64], y[:64]), x[64:], y[64:]
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2))
loss_fn = nn.CrossEntropyLoss()
train_losses = []


# %%
# %%tpu_train model
def train(model, lr=0.3):
    device = torch_xla.device()
    model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loader = DataLoader(train_data, batch_size=16, shuffle=True)
    for _ in range(3):
        for data, target in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(data.to(device)), target.to(device))
            loss.backward()
            xm.optimizer_step(optimizer)
            torch_xla.sync()
            train_losses.append(loss.item())
    return len(train_losses)


# %%
model.cpu().eval()
with torch.no_grad():
    logits = model(test_x)
accuracy = (logits.argmax(1) == test_y).to(torch.float32).mean()

# %%
compared = {"losses": train_losses, "steps": _tpu.value, "logits": logits, "accuracy": accuracy, "weights": model}
