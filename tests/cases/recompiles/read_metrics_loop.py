"""{"compiles": 4, "recompiles": [
  {"cause": "early-read", "at": "metrics"}, {"cause": "early-read", "at": "metrics"}
], "reads": [{"mentions": ["item"]}]}"""

import torch
import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    loader = MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=8), device)
    for x, y in loader:  # site
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output, y)
        loss.backward()
        metrics = {
            "loss": loss.detach(),
            "accuracy": (output.argmax(dim=1) == y).sum(),
            "confidence": output.detach().softmax(dim=1).max(),
        }
        for name, metric in metrics.items():
            print(name, metric.item())  # read metrics
        del metrics, metric
        optimizer.step()
