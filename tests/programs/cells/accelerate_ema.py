# %% [markdown]
# # Accelerate: an EMA copy of the weights, clipping, ReduceLROnPlateau
# The EMA object, the scheduler and the optimizer stand in an earlier cell; the EMA's weights are evaluated afterwards.
#
# Plain run: CPU. Compiles: 3.

# %%
import copy

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)


# %%
class EMA:
    def __init__(self, model, decay):
        self.decay, self.updates = decay, 0
        self.shadow = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for name, parameter in model.named_parameters():
            kept = self.shadow[name].to(parameter.device)
            self.shadow[name] = kept * self.decay + parameter.detach() * (1 - self.decay)

    def copy_to(self, model):
        model.load_state_dict(self.shadow, strict=False)
        return model


# %%
x = torch.randn(64, 4)
train_set = TensorDataset(x[:48], x[:48].abs().sum(1, keepdim=True))
valid_x, valid_y = x[48:], x[48:].abs().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 1))
ema = EMA(model, decay=0.9)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.05)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)


# %%
# %%tpu_train model ema
def train(model, ema, epochs=4):
    accelerator = Accelerator()
    prepared, opt, loader = accelerator.prepare(model, optimizer, DataLoader(train_set, batch_size=16))
    inputs_valid, targets_valid = valid_x.to(accelerator.device), valid_y.to(accelerator.device)
    validation = []
    for _ in range(epochs):
        prepared.train()
        for inputs, targets in loader:
            opt.zero_grad()
            loss = nn.functional.l1_loss(prepared(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
            opt.step()
            ema.update(accelerator.unwrap_model(prepared))
        prepared.eval()
        with torch.no_grad():
            validation.append(nn.functional.l1_loss(prepared(inputs_valid), targets_valid).item())
        plateau.step(validation[-1])
    return validation


# %%
smoothed = ema.copy_to(copy.deepcopy(model))
with torch.no_grad():
    smoothed_loss = nn.functional.l1_loss(smoothed(valid_x), valid_y)

# %%
compared = {
    "validation": _tpu.value,
    "smoothed loss": smoothed_loss,
    "updates": ema.updates,
    "shadow": ema.shadow,
    "weights": model,
    "optimizer": optimizer,
    "plateau": {"best": plateau.best, "bad epochs": plateau.num_bad_epochs, "lr": optimizer.param_groups[0]["lr"]},
}
