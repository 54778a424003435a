"""{"compiles": 6, "recompiles": []}"""

import torch
import torch_xla


def train():
    device = torch_xla.device()
    model = torch.nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, count = [], 3
    for _ in range(6):
        y = torch.randint(0, 4, (8,)).to(device)
        output = model(torch.randn(8, 16).to(device))
        loss = torch.nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()  # site
        losses.append(loss.log10().item())  # site
        losses.append((loss / count).item())  # site
        losses.append(float(loss.detach() * 2))  # site
        losses.append((output.argmax(1) == y).float().mean().item())  # site
        norm = model.weight.detach().norm()
        losses.append(norm.item())  # site
        del norm
