"""A hand-written torch_xla program: reads in the step, and reads that cost nothing there."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n


def accuracy(logits, labels):
    correct = (logits.argmax(dim=-1) == labels).float().sum()
    return correct.item() / labels.size(0)  # TPU102: correct.item() reads the value of correct in each step


def log_after_step(step, loss):
    print(step, loss.item())  # ok: TPU102


def train_epoch(model, optimizer, loader, criterion, device, epoch, every=100):
    meter, losses, seen = Meter(), [], 0
    running, best, correct = 0.0, math.inf, 0
    device_total = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(loader):
        lengths = labels.tolist()  # ok: TPU102
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        logits = model(images)
        loss = criterion(logits, labels)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        running += loss.item()  # TPU102: loss.item() reads the value of loss
        running += loss.item() * images.size(0)  # TPU102: loss.item() reads the value of loss
        meter.update(loss.detach().cpu(), len(lengths))  # TPU102: loss.detach().cpu() reads the value of loss.detach()
        losses.append(float(loss))  # TPU102: float(loss) reads the value of loss
        correct += int((logits.argmax(1) == labels).sum())  # TPU102: reads the value of (logits.argmax(1) == labels).sum()
        preds = logits.argmax(1).cpu().numpy()  # TPU102: logits.argmax(1).cpu().numpy() reads the value of logits.argmax(1)
        host = logits.to("cpu")  # TPU102: logits.to("cpu") reads the value of logits
        rows = logits.tolist()  # TPU102: logits.tolist() reads
        perplexity = math.exp(loss)  # TPU102: math.exp(loss) reads the value of loss
        value = loss.data.item() if epoch > 0 else None  # TPU102: loss.data.item() reads
        acc = accuracy(logits, labels)
        if loss.item() < best:  # TPU102: loss.item() reads the value of loss
            best = running
        print(f"step {step}: {loss.item():.3f}")  # TPU102: loss.item() reads the value of loss
        parts = torch.tensor([loss, loss])  # TPU102: reads the value of [loss, loss]
        seen += labels.size(0) + int(images.shape[0]) + labels.numel()  # ok: TPU102
        ratio = float(len(lengths)) / float(seen)  # ok: TPU102
        flip = torch.rand(1).item() < 0.5  # ok: TPU102
        order = torch.randperm(8).tolist()  # ok: TPU102
        mean = np.mean(preds) + host.mean().item() + np.array(rows).sum()  # ok: TPU102
        noise = np.random.rand(3).tolist() + [random.random()]  # ok: TPU102
        device_total += loss.detach()  # ok: TPU102
        copied = logits.to(device).to(torch.float32).to(images.dtype)  # ok: TPU102
        if step % every == 0:
            running = loss.item()  # ok: TPU102
            print(step, device_total.item() / (step + 1), (perplexity, value, acc, parts.shape, ratio, flip))  # ok: TPU102
        now = loss.item() if step % 50 == 0 else None  # ok: TPU102
        xm.add_step_closure(log_after_step, args=(step, loss))  # ok: TPU102
        xm.add_step_closure(lambda value=loss: print(value.item()))  # ok: TPU102
        if step == len(loader) - 1:
            print("last", loss.item(), order, mean, noise, copied.shape, now)  # ok: TPU102
    return device_total.item() / len(loader)  # ok: TPU102


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, total, found = torch.zeros((), device=device), 0, []
    for images, labels in loader:
        logits = model(images.to(device))
        prediction = logits.argmax(dim=1)
        found.extend(prediction.tolist())  # TPU102: prediction.tolist() reads the value of prediction
        correct += (prediction == labels.to(device)).sum()
        total += labels.size(0)
    everywhere = xm.mesh_reduce("correct", correct, sum)  # ok: TPU102
    return everywhere.item() / total, found  # ok: TPU102


def fit(model, optimizer, train_loader, test_loader, epochs):
    device = xm.xla_device()
    model = model.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(epochs):
        train_loss = train_epoch(model, optimizer, train_loader, criterion, device, epoch)
        score, _ = evaluate(model, test_loader, device)
        norm = sum(p.norm() ** 2 for p in model.parameters()).sqrt().item()  # ok: TPU102
        print(epoch, train_loss, score, norm, float(model.head.weight.mean()))  # ok: TPU102


def skip_bad(model, optimizer, loader, device):
    for x, y in loader:
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        n = int((y.to(device) > 0).sum())  # TPU102: reads the value of (y.to(device) > 0).sum()
        if loss.item() > 100:  # TPU101: The branch depends on the value of loss.item()
            continue
        if torch.isnan(loss):  # TPU101: The branch depends on the value of torch.isnan(loss)
            raise ValueError(f"loss {loss.item()} after {n} positives")  # ok: TPU102
        loss.backward()
        optimizer.step()
        torch_xla.sync()


def scheduled(model, optimizer, loader):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            plateau.step(loss)  # TPU102: plateau.step(loss) reads the value of loss
            cosine.step()  # ok: TPU102
            torch_xla.sync()
        plateau.step(loss)  # ok: TPU102
