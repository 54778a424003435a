"""What runs on the host looks like a step's code and is none: data sets, samplers, transforms, batches drawn on the CPU,
what is said once an epoch. Every line that must not be found has a form that is common in public training scripts."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
from torch.optim import lr_scheduler
from torch.utils.data import Dataset, Sampler

device = torch_xla.device()
tokens = np.memmap("tokens.bin", dtype=np.uint16, mode="r")


def get_batch(batch, width):
    """Rows at random places: their numbers are drawn on the CPU, and read there."""
    starts = torch.randint(len(tokens) - width, (batch,))
    x = torch.stack([torch.from_numpy(tokens[at : at + width].astype(np.int64)) for at in starts])  # ok: TPU104
    y = torch.stack([torch.from_numpy(tokens[at + 1 : at + 1 + width].astype(np.int64)) for at in starts])  # ok: TPU104
    return x.to(device), y.to(device)


def moved_first(batch, width, devices):
    starts = torch.randint(len(tokens) - width, (batch,)).to(devices[0])
    return [tokens[at : at + width] for at in starts]  # TPU104: depends on the value of at


class Boxes:
    """Called by a data set alone."""

    def __call__(self, picture, target):
        boxes = torch.as_tensor(target["boxes"], dtype=torch.float32).reshape(-1, 4)
        keep = (boxes[:, 3] > boxes[:, 1]) & (boxes[:, 2] > boxes[:, 0])
        target["boxes"] = boxes[keep]  # ok: TPU201
        return picture, target


class Pictures(Dataset[int]):
    def __init__(self, files):
        self.files, self.prepare = files, Boxes()

    def __getitem__(self, number):
        picture, target = self.prepare(*self.files[number])
        if target["boxes"].sum() > 0:  # ok: TPU101
            return picture, target
        return picture, {}


class Weighted(Sampler[list[int]]):
    def __init__(self, weights):
        self.weights = torch.tensor(weights, dtype=torch.float64)
        if not torch.isfinite(self.weights).all():  # ok: TPU101
            raise ValueError("weights")

    def __iter__(self):
        order = torch.multinomial(self.weights, 8)
        return iter(order.tolist())  # ok: TPU102


@dataclass
class SpeechCollator:
    processor: object

    def __call__(self, features):
        lengths = torch.tensor([len(one["labels"]) for one in features])
        longest = max(lengths)  # ok: TPU101
        return {"labels": torch.stack([one["labels"] for one in features])[:, :longest]}


class RandomCrop:
    def __call__(self, img, target):
        inside = target["boxes"][:, 2] > target["boxes"][:, 0]
        return img, target["boxes"][inside]  # ok: TPU201


def show(picture):
    if isinstance(picture, (str, int)):
        return str(picture)  # ok: TPU103
    return None


def outcome(predictions, references):
    if device.type == "cpu":
        return predictions.detach().numpy(), references.detach().numpy()  # ok: TPU102
    return predictions, references


def train(model, optimizer, loaders, sizes, epochs):
    scheduler = lr_scheduler.StepLR(optimizer, step_size=7)
    best = 0.0
    for epoch in range(epochs):
        for phase in ("train", "val"):
            right = torch.zeros((), device=device)
            for x, y in loaders[phase]:
                x, y = x.to(device), y.to(device)
                out = model(x)
                loss = F.cross_entropy(out, y)
                if phase == "train":
                    loss.backward()
                    xm.optimizer_step(optimizer, barrier=True)
                right += (out.argmax(-1) == y).sum()
                print(loss.item())  # TPU102: loss.item() reads the value of loss
            if phase == "train":
                scheduler.step()
            accuracy = right.double() / sizes[phase]
            print(f"{epoch} {phase} {accuracy:.3f}")  # ok: TPU103
            if phase == "val" and accuracy > best:  # ok: TPU101
                best = accuracy
    return best


def gathered(model, loader):
    kept = []
    for batch in loader:
        kept.append(batch.target.cpu())
    return torch.cat(kept).numpy()  # ok: TPU102


class Images:
    """What a pipeline does once, before it runs the model."""

    def __init__(self, timesteps, ratio):
        self.timesteps = torch.linspace(0, 999, timesteps)
        self._set_limits(ratio)

    def _set_limits(self, ratio):
        self.most = min(self.timesteps[int(ratio * 10)], 999)  # ok: TPU101
        self.least = self.timesteps.min().item()  # ok: TPU102

    def preprocess_mask_image(self, mask: torch.Tensor):
        mask[mask < 0.5] = 0  # ok: TPU202
        return mask

    def encode_prompt(self, prompt, tokenizer, encoder):
        given = tokenizer(prompt, padding="max_length", return_tensors="pt").input_ids
        untruncated = tokenizer(prompt, padding="longest", return_tensors="pt").input_ids  # ok: TPU301
        if untruncated.shape[-1] >= given.shape[-1] and not torch.equal(given, untruncated):
            print("cut off:", tokenizer.batch_decode(untruncated[:, 77:]))
        return encoder(given.to(device))


def converted(weights: dict[str, torch.Tensor], model):
    weights = weights.get("model", weights)
    result = {}
    for key, value in weights.items():
        if key.endswith("position_table"):  # ok: TPU101
            value = value.flatten()
        result[key] = value
    return result


def spectrum(x, length, window):
    if window == "hann":
        window = torch.hann_window(length, device=x.device)
    if window.shape[-1] != length:  # ok: TPU101
        raise ValueError(f"The window has not {length} elements.")
    return torch.stft(x, length, window=window, return_complex=True)


def joined(batch: dict[str, torch.Tensor], pad):
    result = {}
    for key in batch:
        if "labels" in key:
            value = -100
        elif key.endswith("_ids"):  # ok: TPU101
            value = pad
        result[key.replace("chosen", "joined")] = F.pad(batch[key], (0, 8), value=value)
    return result


class Adapter(torch.nn.Module):
    """What is done once to a module, and what is made on the CPU."""

    def merge(self, safe_merge=False):
        weight = self.weight + self.delta
        if safe_merge and not torch.isfinite(weight).all():  # ok: TPU101
            raise ValueError("not finite")
        self.weight.data = weight

    def to_onnx(self, x, lengths: torch.Tensor):
        return x[:, : lengths.max()]  # ok: TPU204

    def forward(self, x, kinds: list[int]):
        kinds = torch.Tensor(kinds)
        scale = torch.ones_like(kinds)
        scale[(kinds > 0) & (torch.remainder(kinds, 4) == 1)] = 2.0  # ok: TPU202
        return x * scale.to(x.device)

    def tiles(self, images, processor):
        found = processor(images=images, return_tensors="pt")["rows"]
        return [one.sum().item() for one in found.split(2)]  # ok: TPU102
