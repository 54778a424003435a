"""{"compiles": 3, "recompiles": [
  {"cause": "input-shape", "mentions": ["ids", "9", "5"]},
  {"cause": "input-shape", "mentions": ["ids", "12"]}
]}"""

import torch
import torch_xla


def train_on(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, labels in batches:  # both have a second name here, batches[n][0], that is another one in every step
        loss = torch.nn.functional.cross_entropy(model(ids.to(device)).transpose(1, 2), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()  # site


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 4)).to(device)
    lengths = (5, 9, 12, 5)
    rows = [torch.randint(1, 50, (8, length)) for length in lengths]
    train_on(model, [(ids, ids % 4) for ids in rows], device)
