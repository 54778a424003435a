"""Training with torch_xla: branches on what the device computes, and branches that look alike."""

import math

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm


def smooth(loss, limit):
    if loss > limit:  # TPU101: The branch depends on the value of loss
        loss = loss / 2.0
    return loss


def clip(grad: torch.Tensor, most: float) -> torch.Tensor:
    norm = grad.norm()
    return grad * (most / norm) if norm > most else grad  # TPU101: The conditional expression depends on the value of norm


def describe(name, tensor: torch.Tensor):
    if tensor.dim() == 3 and tensor.shape[0] > 1:  # ok: TPU101
        return f"{name}: {tuple(tensor.shape)}"
    if tensor.dtype == torch.bool or not tensor.is_contiguous():  # ok: TPU101
        return name
    return name if tensor.numel() else "empty"  # ok: TPU101


def train(model, optimizer, loader, config, best=None):
    device = torch_xla.device()
    model.to(device)
    converged = False
    limit = 10.0 if config.strict else 100.0  # ok: TPU101
    for epoch in range(config.epochs):
        total = torch.zeros((), device=device)
        previous = None
        for step, (x, y) in enumerate(loader):
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if torch.isnan(loss):  # TPU101: The branch depends on the value of torch.isnan(loss)
                raise RuntimeError("loss is not a number")
            if step > 10 and loss > limit and config.skip_bad:  # TPU101: the value of loss
                continue
            loss = smooth(loss, limit)
            assert torch.isfinite(logits).all(), "overflow"  # TPU101: The assertion depends on
            if previous is not None and x.shape == y.shape:  # ok: TPU101
                total = total + previous
            if config.label_smoothing and not config.strict:  # ok: TPU101
                loss = loss * (1 - config.label_smoothing)
            worst = max(loss, total)  # TPU101: max() needs the value of loss
            rows = max(x.size(0), y.size(0), 1)  # ok: TPU101
            good = logits.argmax(-1) == y
            if not good.any():  # TPU101: the value of good.any()
                worst = worst * 2
            hit = good.all() and True  # TPU101: `and` needs the value of good.all()
            if torch.equal(x, y):  # TPU101: the value of x
                loss = loss * 0
            same = x.equal(y)  # TPU101: equal() needs the value of x
            if isinstance(loss, torch.Tensor) and loss.requires_grad:  # ok: TPU101
                loss.backward()
            xm.optimizer_step(optimizer, barrier=True)
            total += loss.detach()
            previous = loss.detach()
            if step % config.log_every == 0:  # ok: TPU101
                if loss < 0.1:  # ok: TPU101
                    print("good", rows, hit, same, worst.shape)
            if step % 50 == 0 and loss < 0.01:  # ok: TPU101
                break
            if step + 1 == len(loader):  # ok: TPU101
                xm.master_print("last")
        mean = (total / len(loader)).item()
        if math.isnan(mean):  # ok: TPU101
            break
        if best is None or mean < best:  # ok: TPU101
            best = mean
            xm.save(model.state_dict(), "best.pt")
        converged = best < 0.01
        if converged:  # ok: TPU101
            break
    return best


def power_iteration(matrix: torch.Tensor, tolerance: float):
    vector = torch.ones(matrix.shape[0], device=matrix.device)
    change = torch.tensor(1.0, device=matrix.device)
    while change > tolerance:  # TPU101: The loop's condition depends on the value of change
        product = matrix @ vector
        new = product / product.norm()
        change = (new - vector).abs().max()
        vector = new
    rounds = 0
    while rounds < 100:  # ok: TPU101
        rounds += 1
    return vector


def keep_large(tensors: list[torch.Tensor], names: list[str]):
    large = [t for t in tensors if t.abs().max() > 1]  # TPU101: The comprehension's condition depends on
    broken = any(torch.isnan(t).any() for t in tensors)  # TPU101: any() needs the value of torch.isnan(t).any()
    long = [name for name in names if len(name) > 3]  # ok: TPU101
    wide = [t for t in tensors if t.shape[-1] > 128]  # ok: TPU101
    fine = all(t.is_floating_point() for t in tensors)  # ok: TPU101
    return large, broken, long, wide, fine


def between(x: torch.Tensor):
    inside = 0 < x.mean() < 1  # TPU101: The chained comparison needs the value of x.mean()
    half = bool(x.max() > 0.5)  # TPU101: bool() needs the value of x.max()
    low, high = sorted((x.min(), x.max()))  # TPU101: sorted() needs
    ranked = sorted(x.shape)  # ok: TPU101
    square = 0 < x.dim() < 3  # ok: TPU101
    return inside, half, low, high, ranked, square


def route(kind: torch.Tensor, x: torch.Tensor):
    match kind:  # TPU101: The match depends on the value of kind
        case 0:
            return x
        case _:
            return x * 2


def pick(x: torch.Tensor, seen: dict, mode: str):
    if 3 in x:  # TPU101: the value of x
        x = x + 1
    if x.device.type in ("xla", "cpu") and x not in seen:  # ok: TPU101
        x = x - 1
    match mode:  # ok: TPU101
        case "train":
            return x
    return torch.where(x > 0, x, -x)  # ok: TPU101


def count_first(x: torch.Tensor, mask: torch.Tensor | None):
    n = int(mask.sum()) if mask is not None else 0  # ok: TPU101
    if n > 3:  # TPU101: The branch depends on the value of n
        x = torch.relu(x)
    return x
