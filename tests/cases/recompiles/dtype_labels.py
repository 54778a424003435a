"""{"compiles": 2, "recompiles": [{"cause": "input-dtype", "mentions": ["int32", "int64"]}]}"""

import numpy as np
import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    older = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(3)]
    newer = [(torch.randn(8, 16), torch.from_numpy(np.arange(8, dtype=np.int32) % 4)) for _ in range(3)]
    for x, y in older + newer:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y.long())
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
