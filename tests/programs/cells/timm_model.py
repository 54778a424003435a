# %% [markdown]
# # timm: a vision transformer, with timm's optimizer, scheduler, EMA copy and label smoothing
# All of it made in an earlier cell; the loop is Accelerate's.
#
# Plain run: CPU. Compiles: 3.

# %%
import timm
import torch
from accelerate import Accelerator
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, accuracy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(100)

# %%
x = torch.rand(48, 3, 16, 16)
y = x.mean((2, 3)).argmax(1)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
)
optimizer = create_optimizer_v2(model, "sgd", lr=0.1, weight_decay=0.01, momentum=0.9)
scheduler = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1, warmup_lr_init=0.01)
ema = ModelEmaV3(model, decay=0.9)
criterion = LabelSmoothingCrossEntropy(0.1)
losses, rates = [], []


# %%
# %%tpu_train model
def train(model):
    accelerator = Accelerator()
    loader = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8)
    model, prepared, loader = accelerator.prepare(model, optimizer, loader)
    ema.to(accelerator.device)
    for epoch in range(3):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            accelerator.backward(loss)
            prepared.step()
            prepared.zero_grad()
            ema.update(model)
            losses.append(loss.item())
        scheduler.step(epoch + 1)
        rates.append(optimizer.param_groups[0]["lr"])


# %%
model.eval()
with torch.no_grad():
    logits, averaged = model(x[32:]), ema.module(x[32:])

# %%
compared = {
    "losses": losses,
    "rates": rates,
    "logits": [logits, averaged],
    "accuracy": accuracy(logits, y[32:], topk=(1, 2)),
    "weights": model,
    "ema": ema.module,
    "optimizer": optimizer,
}
