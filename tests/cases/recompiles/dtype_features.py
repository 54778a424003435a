"""{"compiles": 2, "recompiles": [{"cause": "input-dtype", "mentions": ["features", "float16", "float32"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    files = [torch.randn(8, 16), torch.randn(8, 16).half(), torch.randn(8, 16), torch.randn(8, 16).half()]
    for part in files:
        features = part.to(device)
        with torch_xla.step():  # site
            optimizer.zero_grad()
            loss = model(features.float()).pow(2).mean()
            loss.backward()
            optimizer.step()
