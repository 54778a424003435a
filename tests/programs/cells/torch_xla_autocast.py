# %% [markdown]
# # torch_xla: bf16 by autocast, a GradScaler that is off, the loop as plain statements
# A notebook that came from a GPU: the scaler stays, disabled; form 3.
#
# Plain run: XLA:CPU. Compiles: 2.

# %%
import torch
import torch_xla
from torch import nn

use_amp = False
torch.manual_seed(23)

# %%
x = torch.randn(8, 16, 12)
y = x[:, :, :3].argmax(2)
model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
scaler = torch.amp.GradScaler("cpu", enabled=use_amp)
losses = torch.zeros(16)

# %%
# %%tpu_train
device = torch_xla.device()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(16):
    inputs, targets = x[step % 8].to(device), y[step % 8].to(device)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("xla", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch_xla.sync()
    losses[step] = loss.item()

# %%
compared = {"losses": losses, "last step": step, "loss": loss, "weights": model, "scaler": scaler}
