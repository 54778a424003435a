"""A program whose model, data and losses come out of other files: what names and uses say."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from absl import logging
from losses import detection_loss
from models import Tagger, build_model
from readers import get_loaders, speech_batches

train_loader, val_loader = get_loaders(32)
net = build_model("resnet")
device = torch_xla.device()
net = net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

for epoch in range(10):
    for images, labels in train_loader:
        if labels.max() > 9:  # ok: TPU101 the loader's batch is still on the host
            continue
        images, labels = images.to(device), labels.to(device)
        loss, parts = detection_loss(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        if loss.isinf():  # TPU101: the value of loss.isinf()
            labels = labels + 1
        logging.info("loss %s", loss)  # TPU103: the value of loss
        logging.info("shape %s", images.shape)  # ok: TPU103
    correct = total = 0
    with torch.no_grad():
        for images, labels in val_loader:
            images, labels = images.to(device), labels.to(device)
            predicted = net(images).argmax(1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()  # TPU102: reads the value of (predicted == labels).sum()
    print(f"accuracy {correct / total:.2f}")  # ok: TPU103
    if correct > 0.9 * total:  # ok: TPU101
        break


def read_aloud(options):
    xla = xm.xla_device()
    tagger = Tagger(options.size)
    tagger.to(xla)
    adam = torch.optim.Adam(tagger.parameters(), lr=1e-3)
    order = torch.randperm(1000)
    for at in range(0, 1000, 8):
        rows = order[at : at + 8]
        names = [str(row) for row in rows.tolist()]  # ok: TPU102 a permutation on the host
    for sound, lengths in speech_batches(options.path, names):
        sound, lengths = sound.to(xla), lengths.to(xla)
        logits = tagger(sound)
        cut = logits[:, : lengths.max()]  # TPU204: the value of lengths.max()
        loud = sound[sound > 0.5]  # TPU201: the values of sound > 0.5
        if sound.shape[1] > 16000:  # ok: TPU101
            break
        (cut.mean() + loud.mean()).backward()
        xm.optimizer_step(adam, barrier=True)
        adam.zero_grad()


def stream(loader, place):
    for inputs, targets in loader:
        yield inputs.to(place), targets.to(place)


def fit(encoder, loader, crit, steps):
    place = torch_xla.device()
    sgd = torch.optim.SGD(encoder.parameters(), lr=0.1)
    batches = stream(loader, place)
    for step in range(steps):
        inp, gold = next(batches)
        error = crit(encoder(inp), gold)
        sgd.zero_grad()
        error.backward()
        sgd.step()
        torch_xla.sync()
        kept = gold.tolist()  # TPU102: reads the value of gold
        if (norm := error.detach()) > 100:  # TPU101: the value of norm
            sgd.zero_grad()
        if step % 100 == 99:
            print(error.item(), len(kept))  # ok: TPU102


def pick(scores: torch.Tensor, pos: torch.Tensor, start: torch.Tensor, width: int):
    neg = scores[~pos]  # TPU201: the values of ~pos
    own = scores[pos]  # TPU201: the values of pos
    part = scores[:, start : start + width]  # TPU204: the value of start
    best = scores.topk(width).indices
    keep = scores.max(1).indices
    return neg, own, part, scores[best], scores[keep]  # ok: TPU201 positions
