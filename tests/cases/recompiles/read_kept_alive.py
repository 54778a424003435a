"""{"compiles": 3, "recompiles": [{"cause": ["early-read", "live-tensors"]}], "reads": [{"mentions": ["accuracy"]}]}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.randint(0, 4, (8,)).to(device)
    for step in range(9):
        output = model(torch.randn(8, 16).to(device))
        loss = torch.nn.functional.cross_entropy(output, y)
        if step % 3 == 2:
            accuracy = (output.argmax(dim=1) == y).float().mean()
            print(f"accuracy {accuracy:.2f}")  # read
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
