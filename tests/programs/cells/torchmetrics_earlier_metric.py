# %% [markdown]
# # torchmetrics: metrics of an earlier cell, updated in the training, computed in the next cell
# One is a collection; `.to(device)` as torchmetrics asks for it.
#
# Plain run: CPU. Compiles: 8.

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

torch.manual_seed(50)

# %%
x = torch.randn(48, 5)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
mean_loss = MeanMetric()
metrics = MetricCollection({"accuracy": MulticlassAccuracy(3), "confusion": MulticlassConfusionMatrix(3)})
by_epoch = []


# %%
# %%tpu_train model
def train(model):
    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    mean_loss.to(accelerator.device)
    metrics.to(accelerator.device)
    for _ in range(2):
        metrics.reset()
        for inputs, targets in loader:
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits, targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            mean_loss.update(loss.detach())
            metrics.update(logits.detach(), targets)
        by_epoch.append(metrics.compute()["accuracy"].item())


# %%
found = metrics.compute()
metrics.update(torch.eye(3), torch.arange(3))  # and on: they are as usable as before

# %%
compared = {
    "by epoch": by_epoch,
    "found": found,
    "after": metrics.compute(),
    "mean loss": mean_loss.compute(),
    "updates": [mean_loss.update_count, metrics["accuracy"].update_count],
    "device": str(mean_loss.device),
    "weights": model,
}
