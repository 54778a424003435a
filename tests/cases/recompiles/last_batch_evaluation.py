"""{"compiles": 5, "recompiles": [
  {"cause": "last-batch", "at": "gather", "mentions": ["8", "16"]},
  {"cause": ["last-batch", "input-shape"], "at": "count", "mentions": ["8", "16"]}
]}"""

import torch
from accelerate import Accelerator


def train():
    accelerator = Accelerator()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 16), torch.randint(0, 4, (40,)))
    training = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    evaluation = torch.utils.data.DataLoader(data, batch_size=16)
    model, optimizer, training, evaluation = accelerator.prepare(model, optimizer, training, evaluation)
    for _epoch in range(2):
        model.train()
        for x, y in training:  # site
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = 0
        for x, y in evaluation:
            with torch.no_grad():
                predictions = model(x).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, y))  # site gather
            correct += (predictions == references).sum().item()  # read count
        accelerator.print(correct)
