"""Hugging Face Accelerate: the loops of its examples, with reads at each step and without."""

import evaluate
import numpy as np
import torch
from accelerate import Accelerator, notebook_launcher
from torch.optim import AdamW
from tqdm.auto import tqdm


def training_function(model, train_dataloader, eval_dataloader, config):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    optimizer = AdamW(model.parameters(), lr=config["lr"])
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    metric = evaluate.load("accuracy")
    progress_bar = tqdm(range(1000), disable=not accelerator.is_local_main_process)
    completed = 0
    for epoch in range(config["epochs"]):
        model.train()
        total_loss, train_loss = 0, 0.0
        for step, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                total_loss += loss.detach().float()  # ok: TPU102
                average = accelerator.gather(loss.repeat(config["batch_size"])).mean()
                train_loss += average.item() / accelerator.gradient_accumulation_steps  # TPU102: average.item() reads
                accelerator.backward(loss)
                if accelerator.sync_gradients:  # ok: TPU101
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:  # ok: TPU101
                progress_bar.update(1)
                completed += 1
            logs = {"step_loss": loss.detach().item(), "lr": config["lr"]}  # TPU102: loss.detach().item() reads
            progress_bar.set_postfix(**logs)  # ok: TPU103
            if completed % 500 == 0:
                accelerator.print(completed, loss.item())  # ok: TPU102
            if completed >= config["max_steps"]:  # ok: TPU101
                break
        model.eval()
        samples_seen, losses = 0, []
        labels_seen = np.zeros(0)
        for step, batch in enumerate(eval_dataloader):
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs.logits.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
            metric.add_batch(predictions=predictions, references=references)  # ok: TPU102
            samples_seen += references.shape[0]  # ok: TPU102
            labels_seen = np.append(labels_seen, references.cpu().numpy())  # TPU102: references.cpu().numpy() reads
            losses.append(outputs.loss.item())  # TPU102: outputs.loss.item() reads the value of outputs.loss
        accelerator.print(epoch, metric.compute(), total_loss.item() / len(train_dataloader))  # ok: TPU102
        accelerator.print(train_loss, np.mean(losses), labels_seen.size, samples_seen)  # ok: TPU102
    return float(total_loss)  # ok: TPU102


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}  # ok: TPU102


def collate_fn(examples):
    pixels = torch.stack([example["pixel_values"] for example in examples])
    longest = max(example["labels"].max().item() for example in examples)  # ok: TPU102
    return {"pixel_values": pixels, "labels": torch.tensor([example["label"] for example in examples]), "most": longest}


def launch(model, train_dataloader, eval_dataloader):
    config = {"lr": 1e-4, "epochs": 3, "batch_size": 8, "max_steps": 1000}
    notebook_launcher(training_function, (model, train_dataloader, eval_dataloader, config))
