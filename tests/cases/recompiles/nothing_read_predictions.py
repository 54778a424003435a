"""{"compiles": 2, "recompiles": [], "reads": [{"mentions": ["cpu"]}]}"""

import torch
import torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    loader = MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=8), device)
    for step, (x, y) in enumerate(loader):  # site
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        if step == 5:
            predictions = output.argmax(dim=1).cpu()  # read
            print((predictions == y.cpu()).float().mean())
