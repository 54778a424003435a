"""{"compiles": 5, "recompiles": [{"cause": "optimizer-state"}, {"cause": "new-code", "normal": true}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = [torch.randn(4, 8) for _ in range(2)]
    for x in (*data, *data):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()  # site
    torch.optim.swa_utils.update_bn(data, model, device)  # read # site
    torch_xla.sync()  # site
