# %% [markdown]
# # Early stopping by an exception, and on from the best weights
# The stopper raises, as some people's do; `--keep-partial` leaves the weights and the history as they are then, as a
# plain cell does. The second cell loads the best weights that the stopper kept, and goes on with a smaller rate.
#
# Plain run: CPU. Compiles: 2 + 2, plain torch_xla: 2 + 0.

# %%
import copy

import torch
from torch import nn

torch.manual_seed(42)


class StopTraining(Exception):
    pass


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
class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best, self.best_weights = patience, 0, float("inf"), None

    def check(self, value, model):
        if value < self.best:
            self.best, self.bad = value, 0
            self.best_weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        else:
            self.bad += 1
            if self.bad > self.patience:
                raise StopTraining(f"no better than {self.best:.4f}")


x = torch.randn(6, 16, 5)
y = x.pow(2).sum(2, keepdim=True)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
stopping, history = EarlyStopping(patience=1), []


# %%
def fit(model, learning_rate, epochs):
    device = get_device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for inputs, targets in zip(x[:4], y[:4]):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            mark_step(device)
        with torch.no_grad():
            value = nn.functional.mse_loss(model(x[4].to(device)), y[4].to(device)).item()
        history.append(value)
        stopping.check(value, model)


# %% tags=["raises-exception"]
# %tpu_train --keep-partial fit model 0.12 20

# %%
stopped_after, stopped_weights = len(history), copy.deepcopy(model.cpu().state_dict())
model.load_state_dict(stopping.best_weights)
stopping.bad = 0

# %%
# %tpu_train fit model 0.01 3

# %%
compared = {
    "stopped after": stopped_after,
    "weights when stopped": stopped_weights,
    "best": stopping.best,
    "best weights": stopping.best_weights,
    "history": history,
    "weights": model,
}
