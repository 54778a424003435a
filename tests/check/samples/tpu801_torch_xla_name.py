"""What of torch_xla has which counterpart in TorchTPU; and what is PyTorch's own, or says "xla" of something else."""

import os

import torch
import torch_xla  # TPU801: `torch_xla` is imported
import torch_xla.core.xla_model as xm  # TPU801: `torch_xla.core.xla_model` is imported
import torch_xla.debug.metrics as met  # TPU801: `torch_xla.debug.metrics` is imported
import torch_xla.distributed.xla_multiprocessing as xmp  # TPU801: `torch_xla.distributed.xla_multiprocessing`
import torch_xla.runtime as xr  # TPU801: `torch_xla.runtime` is imported
from torch import nn  # ok: TPU801
from torch_xla.core.xla_model import mark_step as step_done  # TPU801: `torch_xla.core.xla_model` is imported
from torch_xla.distributed.parallel_loader import MpDeviceLoader  # TPU801: `torch_xla.distributed.parallel_loader`

from .torch_xla import mark_step  # ok: TPU801

os.environ["XLA_USE_BF16"] = "1"  # TPU801: `XLA_USE_BF16` is torch_xla's variable
os.environ.setdefault("PJRT_DEVICE", "TPU")  # TPU801: `PJRT_DEVICE` is torch_xla's variable
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # ok: TPU801
HELP = {"PJRT_DEVICE": "what the runtime runs on"}  # ok: TPU801


@torch_xla.compile  # TPU801: `torch_xla.compile` is torch_xla's
def forward(model, x):
    return model(x)


def train(index, model, optimizer, data):
    torch_xla.manual_seed(index)  # TPU801: `torch_xla.manual_seed` is torch_xla's
    torch.manual_seed(index)  # ok: TPU801
    device = xm.xla_device()  # TPU801: `torch_xla.core.xla_model.xla_device` is torch_xla's
    second = torch_xla.device(1)  # TPU801: `torch_xla.device` is torch_xla's
    model.to("xla").to(device)  # TPU801: "xla" is torch_xla's
    x = torch.ones(2, device="xla:0")  # TPU801: "xla:0" is torch_xla's
    y = torch.ones(2, device="cpu").to(second)  # ok: TPU801
    for batch in MpDeviceLoader(data, device):  # TPU801: `torch_xla.distributed.parallel_loader.MpDeviceLoader`
        with torch.autocast("xla", dtype=torch.bfloat16):  # TPU801: "xla" is torch_xla's
            loss = nn.functional.mse_loss(forward(model, batch), x)  # ok: TPU801
        loss.backward()  # ok: TPU801
        xm.optimizer_step(optimizer)  # TPU801: `torch_xla.core.xla_model.optimizer_step` is torch_xla's
        step_done()  # TPU801: `torch_xla.core.xla_model.mark_step` is torch_xla's
        mark_step()  # ok: TPU801
    if device.type == "xla":  # TPU801: "xla" is torch_xla's
        xm.wait_device_ops()  # TPU801: `torch_xla.core.xla_model.wait_device_ops` is torch_xla's
    if index == "xla":  # ok: TPU801
        print("xla", y)  # ok: TPU801
    names = {"xla": "a compiler"}  # ok: TPU801
    torch.distributed.init_process_group("xla", init_method="xla://")  # TPU801: is torch_xla's
    xm.master_print(met.metrics_report(), names)  # TPU801: `torch_xla.debug.metrics.metrics_report` is torch_xla's
    done = xm.rendezvous  # TPU801: `torch_xla.core.xla_model.rendezvous` is torch_xla's
    done("end")  # ok: TPU801
    return torch.compile(forward, backend="openxla"), xr.world_size()  # TPU801: is torch_xla's


xmp.spawn(train, args=(nn.Linear(2, 2), None, []))  # TPU801: `torch_xla.distributed.xla_multiprocessing.spawn`
