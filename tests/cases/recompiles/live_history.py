"""{"compiles": 4, "recompiles": [{"cause": "live-tensors"}, {"cause": "live-tensors"}, {"cause": "live-tensors"}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)
        return sum(self.values) / len(self.values)


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = Meter()
    for _ in range(4):
        x = torch.randn(8, 16).to(device)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        mean = meter.add(loss.detach())
        xm.mark_step()  # site
    print(mean.item())
