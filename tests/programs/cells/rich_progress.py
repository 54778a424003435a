# %% [markdown]
# # rich: a progress bar around the training, on two ranks
# `Progress` and a `Console` of an earlier cell, with `notebook_launcher`'s function; each rank has the same data.
#
# Plain run: CPU. Ranks: 2. Compiles: 6.

# %%
import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, track
from torch import nn

torch.manual_seed(70)

# %%
x = torch.randn(6, 8, 4)
y = x.sum(2, keepdim=True)
model = nn.Linear(4, 1)
console = Console()
progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console)
losses = []


# %%
# %%tpu_train model
def train(model):
    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    with progress:
        task = progress.add_task("training", total=len(x))
        for inputs, targets in zip(x.to(accelerator.device), y.to(accelerator.device)):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"loss {losses[-1]:.2f}")
    return [losses[index] for index in track(range(len(losses)), "counting", console=console)]


# %%
compared = {
    "losses": losses,
    "value": _tpu.value,
    "progress": [progress.finished, progress.tasks[0].completed, progress.tasks[0].description],
    "weights": model,
}
