"""{"compiles": 3, "recompiles": []}"""

import torch
from accelerate import Accelerator


def train():
    accelerator = Accelerator()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    training = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    evaluation = torch.utils.data.DataLoader(data, batch_size=32)
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
            predictions, references = accelerator.gather_for_metrics((predictions, y))  # site
            correct += (predictions == references).sum().item()  # read
        accelerator.print(correct)
