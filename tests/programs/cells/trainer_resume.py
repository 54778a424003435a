# %% [markdown]
# # Trainer: checkpoints, the best model, and on from the last checkpoint in a second training cell
# Saved each epoch, `load_best_model_at_end`; then two more epochs with `resume_from_checkpoint=True`.
#
# Plain run: CPU. Compiles: 9 + 9, plain torch_xla: 9 + 2.

# %%
import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

set_seed(3)


# %%
class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x=None, labels=None):
        found = self.layers(x)[:, 0]
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


# %%
x = torch.randn(40, 6)
rows = [{"x": one, "labels": one.sum().sin()} for one in x]
args = TrainingArguments(
    "checkpoints",
    learning_rate=3e-2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    logging_steps=2,
    optim="adamw_torch",
    report_to="none",
    disable_tqdm=True,
)
model = Regression()
trainer = Trainer(model, args, train_dataset=rows[:32], eval_dataset=rows[32:])

# %%
# %%tpu_train
result = trainer.train()

# %%
first = {
    "loss": result.training_loss,
    "best": trainer.state.best_metric,
    "best checkpoint": trainer.state.best_model_checkpoint,
    "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
}
trainer.args.num_train_epochs = 4

# %%
# %%tpu_train
result = trainer.train(resume_from_checkpoint=True)

# %%
compared = {
    "first": first,
    "loss": result.training_loss,
    "evaluation": trainer.evaluate(),
    "best": trainer.state.best_metric,
    "log_history": trainer.state.log_history,
    "global_step": trainer.state.global_step,
    "weights": trainer.model,
}
