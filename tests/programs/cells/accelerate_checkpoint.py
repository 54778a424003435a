# %% [markdown]
# # Accelerate: `save_state` in one training cell, `load_state` in the next
# The function keeps its progress in an object that is registered for checkpointing; the second cell goes on from it.
# `save_model` writes weights for inference.
#
# Plain run: CPU. Compiles: 2 + 1, plain torch_xla: fails.

# %%
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)


# %%
class Progress:
    def __init__(self):
        self.epoch, self.losses = 0, []

    def state_dict(self):
        return {"epoch": self.epoch, "losses": list(self.losses)}

    def load_state_dict(self, state):
        self.epoch, self.losses = state["epoch"], list(state["losses"])


def make_model():
    torch.manual_seed(12)
    return nn.Sequential(nn.Linear(5, 12), nn.SiLU(), nn.Linear(12, 1))


x = torch.randn(32, 5)
dataset = TensorDataset(x, x.prod(1, keepdim=True))


# %%
def train(model, progress, epochs, resume_from=None):
    accelerator = Accelerator(project_dir="project")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(progress)
    if resume_from:
        accelerator.load_state(resume_from)
    while progress.epoch < epochs:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        progress.losses.append(loss.item())
        progress.epoch += 1
        accelerator.save_state(last)
    accelerator.save_model(model, "weights")


# %%
last = "project/last"
model, progress = make_model(), Progress()

# %%
# %tpu_train train model progress 2

# %%
stopped_at = progress.epoch
model, progress = make_model(), Progress()

# %%
# %tpu_train train model progress 4 resume_from=last

# %%
compared = {"stopped at": stopped_at, "progress": progress, "weights": model}
compared["file"] = load_file("weights/model.safetensors")
