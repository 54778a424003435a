# %% [markdown]
# # torch_xla: `torch_xla.launch`, `torch_xla.step()`, dropout
# Dropout draws from the device's random numbers, seeded in the function with `torch_xla.manual_seed`.
#
# Plain run: XLA:CPU. Compiles: 2.

# %%
import torch
import torch_xla
from torch import nn

torch.manual_seed(22)

# %%
x = torch.randn(6, 16, 10)
y = x.mean(2, keepdim=True).sigmoid()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1), nn.Sigmoid())
log = {}


# %%
def train(index, model, epochs):
    torch_xla.manual_seed(1234)
    device = torch_xla.device()
    model.train().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for inputs, targets in zip(x, y):
            with torch_xla.step():
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy(model(inputs.to(device)), targets.to(device))
                loss.backward()
                optimizer.step()
        log[epoch] = loss.item()


# %%
# %%tpu_train
torch_xla.launch(train, args=(model, 2), debug_single_process=True)

# %%
compared = {"log": log, "weights": model}
