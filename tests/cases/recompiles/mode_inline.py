"""{"compiles": 2, "recompiles": [{"cause": "mode-switch"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).to(device)
    x = torch.randn(4, 6, 16).to(device)
    for step in range(6):
        model.train(step % 2 == 0)
        with torch_xla.step():  # site
            loss = model(x).pow(2).mean()
            loss.backward()
            model.zero_grad()
