"""{"compiles": 2, "recompiles": []}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(3):
        model.train()
        for _ in range(4):
            x = torch.randn(8, 16).to(device)
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()  # site
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                x = torch.randn(32, 16).to(device)
                loss = model(x).pow(2).mean()
                torch_xla.sync()  # site evaluation
        print(loss.item())
