"""{"compiles": 3, "recompiles": [
  {"cause": "input-shape", "mentions": ["8", "6"]},
  {"cause": "input-shape", "mentions": ["11"]}
]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.GRU(4, 8, batch_first=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def training_step(signal):
        optimizer.zero_grad()
        output, _ = model(signal)
        loss = output.pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled_step = torch_xla.compile(training_step)
    for length in (6, 8, 6, 11, 8):
        signal = torch.randn(2, length, 4).to(device)
        compiled_step(signal)  # site
