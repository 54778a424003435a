"""{"compiles": 2, "recompiles": [
  {"cause": "new-code", "mentions": ["`self.model`", "another model"], "normal": true}
]}"""

import torch
import torch_xla


class Training:
    def __init__(self, hidden):
        layers = torch.nn.Linear(4, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2)
        self.model = torch.nn.Sequential(*layers).to(torch_xla.device())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4).to(torch_xla.device())).pow(2).mean().backward()
            self.optimizer.step()
            torch_xla.sync()  # site


def train():
    for hidden in (4, 8):
        Training(hidden).fit()
