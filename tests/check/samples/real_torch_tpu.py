"""TorchTPU: the device "tpu", PyTorch's own names. XLA's rules are the same, and no fix names a function of torch_xla."""

import torch

model = torch.nn.Linear(4, 4).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(lambda x: model(x).pow(2).mean(), backend="tpu")


def train(loader, total=0.0):
    for batch in loader:
        loss = step(batch.to("tpu"))
        if loss.isnan():  # TPU101: The branch depends on the value of loss
            raise ValueError("nan")
        print(loss)  # TPU103: print() reads the value of loss in each step
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # ok: TPU405
        total += loss.item() / 2  # TPU102: loss.item() reads the value of loss in each step
    torch.save(model.state_dict(), "model.pt")  # ok: TPU409
    torch.accelerator.synchronize()
    return total
