"""Scripts: new interpreters build their models themselves, as torch_xla's own examples do."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
from accelerate import Accelerator, notebook_launcher
from torch import nn
from transformers import AutoModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x):
        return self.fc(x.flatten(1))


def _mp_fn(index, flags):
    device = torch_xla.device()
    model = Net().to(device)  # ok: TPU401
    print(index, sum(p.numel() for p in model.parameters()))


def _mp_large(index):
    model = AutoModel.from_pretrained("gpt2").to(xm.xla_device())  # ok: TPU401
    print(index, model.config)


def _mp_forked(index):
    model = AutoModel.from_pretrained("gpt2").to(xm.xla_device())  # TPU401: in each process of xmp.spawn
    print(index, model.config)


WRAPPED = xmp.MpModelWrapper(Net())


def _mp_wrapped(index):
    model = WRAPPED.to(torch_xla.device())  # ok: TPU401
    print(index, model)


def training_function():
    model = AutoModel.from_pretrained("bert-base-cased")  # TPU401: inside `training_function`, in each process of notebook_launcher
    model = Accelerator().prepare(model)


def evaluate(model):
    return model(torch.ones(1, 784))


def never_launched():
    model = AutoModel.from_pretrained("bert-base-cased")  # ok: TPU401
    return evaluate(model)


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=({},))
    torch_xla.launch(_mp_large)
    xmp.spawn(_mp_forked, start_method="fork")
    xmp.spawn(_mp_wrapped, start_method="fork")
    notebook_launcher(training_function)
    never_launched()
