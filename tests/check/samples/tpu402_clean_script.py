"""One process, or none: the main process is the one that trains."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
from accelerate import Accelerator

accelerator = Accelerator()  # ok: TPU402
device = xm.xla_device()  # ok: TPU402


def train(index):
    x = torch.ones(3).to(torch_xla.device())  # ok: TPU402
    print(index, x)


if __name__ == "__main__":
    print(xm.get_xla_supported_devices())  # ok: TPU402
    xmp.spawn(train, nprocs=1)
    torch_xla.launch(train, debug_single_process=True)
