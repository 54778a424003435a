# %% [markdown]
# # Lightning: module, Trainer, `fit` and `test` in one training cell
# Nothing of it is in an earlier cell but the data; the cells below use what the training cell has made.
#
# Plain run: CPU. Compiles: 13, plain torch_xla: 14.

# %%
import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# %%
generator = torch.Generator().manual_seed(2)
x = torch.randn(48, 4, generator=generator)
y = (x[:, 0] > x[:, 1]).long()
losses = []


# %%
# %%tpu_train
class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        losses.append(loss.item())
        return loss

    def test_step(self, batch, index):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).double().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


L.seed_everything(3)
model = Classifier()
stopping = EarlyStopping("loss", check_on_train_epoch_end=True, mode="min", patience=5)
trainer = L.Trainer(max_epochs=3, logger=False, enable_checkpointing=False, callbacks=[stopping])
trainer.fit(model, DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8))
tested = trainer.test(model, DataLoader(TensorDataset(x[32:], y[32:]), batch_size=8), verbose=False)

# %%
with torch.no_grad():
    logits = model.eval().net(x[32:])

# %%
compared = {
    "losses": losses,
    "tested": tested,
    "logits": logits,
    "weights": model,
    "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    "steps": [trainer.global_step, trainer.current_epoch],
    "best": float(stopping.best_score),
    "state": str(trainer.state.status),
}
