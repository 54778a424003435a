"""{"compiles": 2, "recompiles": [{"cause": "mode-switch", "mentions": ["eval"]}]}"""

import torch
import torch_xla


def run_batch(model, x):
    loss = model(x).pow(2).mean()
    torch_xla.sync()  # site
    return loss


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)).to(device)
    for _epoch in range(3):
        model.train()
        run_batch(model, torch.randn(8, 16).to(device))
        model.eval()
        run_batch(model, torch.randn(8, 16).to(device))
