"""{"compiles": 3, "recompiles": [], "reads": [{"mentions": ["bag"]}, {"mentions": ["backward"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    bag = torch.nn.EmbeddingBag(100, 8).to(device)
    optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
    for _ in range(5):
        ids = torch.randint(0, 100, (4, 6)).to(device)
        optimizer.zero_grad()
        loss = bag(ids).pow(2).mean()  # read
        loss.backward()  # read
        optimizer.step()
        torch_xla.sync()  # site
