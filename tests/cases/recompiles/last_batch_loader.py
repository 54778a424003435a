"""{"compiles": 2, "recompiles": [{"cause": "last-batch", "mentions": ["4", "16"]}]}"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def train():
    device = torch_xla.device()
    model = torch.nn.Conv1d(2, 4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(52, 2, 12), torch.randn(52, 4, 10))
    loader = MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=16, shuffle=True), device)
    for _epoch in range(2):
        for signal, target in loader:  # site
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(signal), target).backward()
            xm.optimizer_step(optimizer)
