# %% [markdown]
# # Trainer: a subclass with its own loss, a callback with a history, optimizer and scheduler from the notebook
# `compute_loss` weighs the classes; the callback's own list is plotted afterwards.
#
# Plain run: CPU. Compiles: 7.

# %%
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(4)


# %%
class Classifier(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.LayerNorm(24))
        self.head = nn.Linear(24, classes)

    def forward(self, features, labels=None):
        return {"logits": self.head(self.body(features))}


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights, **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = class_weights
        self.seen = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = model(**inputs)
        weight = self.class_weights.to(labels.device)
        loss = nn.functional.cross_entropy(outputs["logits"], labels, weight=weight)
        self.seen += len(labels)
        return (loss, outputs) if return_outputs else loss


class History(TrainerCallback):
    def __init__(self):
        self.losses, self.steps = [], 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append((state.global_step, logs["loss"]))


# %%
features = torch.randn(64, 10)
labels = features[:, :3].argmax(1)
rows = [{"features": one, "labels": label} for one, label in zip(features, labels)]

# %%
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
history = History()
args = TrainingArguments(
    "weighted", per_device_train_batch_size=16, max_steps=6, logging_steps=1, save_strategy="no", report_to="none"
)
trainer = WeightedTrainer(
    model,
    args,
    train_dataset=rows,
    optimizers=(optimizer, scheduler),
    callbacks=[history],
    class_weights=torch.tensor([1.0, 2.0, 3.0]),
)

# %%
# %%tpu_train
trainer.train()

# %%
compared = {
    "losses": history.losses,
    "steps": history.steps,
    "seen": trainer.seen,
    "log_history": trainer.state.log_history,
    "weights": model,
    "optimizer": optimizer,
    "learning rate": scheduler.get_last_lr(),
}
