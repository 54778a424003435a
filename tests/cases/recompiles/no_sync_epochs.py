"""{"compiles": 2, "recompiles": [{"cause": "no-sync"}], "reads": [{"mentions": ["torch_xla.sync()"]}]}"""

import torch


def train():
    device = "xla"
    model = torch.nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _epoch in range(2):
        total = 0.0
        for _ in range(3):
            x = torch.randn(16, 8).to(device)
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        print(float(total))  # read # site
