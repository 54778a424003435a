# %% [markdown]
# # Lightning: `Trainer(max_epochs=...)` of an earlier cell, validation, checkpoints, a CSV logger, a second `fit`
# The form of Lightning's own tutorials: the Trainer says nothing of a device. After the training cell: its metrics, the
# best checkpoint, a validation and predictions.
#
# Plain run: CPU. Compiles: 11 + 8, plain torch_xla: 12 + 0.

# %%
import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(0)


# %%
class Regressor(L.LightningModule):
    def __init__(self, width=8, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        self.seen = 0

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.seen += len(y)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), y), prog_bar=True)

    def predict_step(self, batch, index):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


# %%
generator = torch.Generator().manual_seed(1)
x = torch.randn(48, 4, generator=generator)
y = x.sum(1) / 2
train_loader = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8)
val_loader = DataLoader(TensorDataset(x[32:], y[32:]), batch_size=8)
model = Regressor()
best = ModelCheckpoint("checkpoints", monitor="val_loss", save_last=True)
trainer = L.Trainer(
    max_epochs=2, callbacks=[best, LearningRateMonitor()], logger=CSVLogger("logs"), log_every_n_steps=1
)

# %%
# %%tpu_train
trainer.fit(model, train_loader, val_loader)

# %%
validated = trainer.validate(model, val_loader, verbose=False)
predicted = torch.cat(trainer.predict(model, val_loader))
again = Regressor.load_from_checkpoint(best.best_model_path)
trainer.fit_loop.max_epochs = 3

# %%
# %%tpu_train
trainer.fit(model, train_loader, val_loader)

# %%
compared = {
    "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    "validated": validated,
    "predicted": predicted,
    "weights": model,
    "best": [best.best_model_path.split("/")[-1], float(best.best_model_score)],
    "checkpoint": again,
    "steps": [trainer.global_step, trainer.current_epoch, model.seen],
    "optimizer": trainer.optimizers[0],
    "scheduler": trainer.lr_scheduler_configs[0].scheduler.get_last_lr(),
    "same model": trainer.lightning_module is model,
    "state": [str(trainer.state.status), trainer.state.finished],
    "logged": open("logs/lightning_logs/version_0/metrics.csv").readline(),
}
