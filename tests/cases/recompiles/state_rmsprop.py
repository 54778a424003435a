"""{"compiles": 2, "recompiles": [{"cause": "optimizer-state"}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    fast = torch_xla.compile(step, name="step")
    for _ in range(5):
        fast(torch.randn(8, 16).to(device))  # site
