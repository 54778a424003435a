# %% [markdown]
# # Accelerate: `notebook_launcher` with a model of an earlier cell
# The form of Accelerate's NLP example: loaders made in the function, a schedule with warm-up, metrics gathered over the
# ranks, and the best epoch in a dictionary of the notebook.
#
# Plain run: CPU. Compiles: 6.

# %%
import torch
from accelerate import Accelerator, notebook_launcher
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

set_seed(42)

# %%
ids = torch.randint(3, 50, (80, 8))
rows = [{"input_ids": one, "attention_mask": torch.ones_like(one), "labels": one.sum() % 2} for one in ids]
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
hyperparameters = {"learning_rate": 5e-3, "num_epochs": 2, "batch_size": 16}
best = {"epoch": None, "accuracy": 0.0}
losses = []


# %%
def training_function(model, hyperparameters):
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    train_loader = DataLoader(rows[:64], shuffle=True, batch_size=hyperparameters["batch_size"], drop_last=True)
    eval_loader = DataLoader(rows[64:], batch_size=hyperparameters["batch_size"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=hyperparameters["learning_rate"])
    steps = len(train_loader) * hyperparameters["num_epochs"]
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=steps)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    for epoch in range(hyperparameters["num_epochs"]):
        model.train()
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        correct = total = 0
        for batch in eval_loader:
            with torch.no_grad():
                found = model(**batch).logits.argmax(dim=-1)
            found, labels = accelerator.gather_for_metrics((found, batch["labels"]))
            correct += (found == labels).sum().item()
            total += len(labels)
        if correct / total > best["accuracy"]:
            best.update(epoch=epoch, accuracy=correct / total)


# %%
# %%tpu_train
notebook_launcher(training_function, (model, hyperparameters), num_processes=1)

# %%
compared = {"losses": losses, "best": best, "weights": model}
