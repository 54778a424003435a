"""{"compiles": 2, "recompiles": [{"cause": "last-batch", "mentions": ["5", "8"]}]}"""

import torch
from accelerate import Accelerator


def train():
    accelerator = Accelerator()
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(29, 16), torch.randint(0, 4, (29,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _epoch in range(3):
        for x, y in loader:  # site
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
