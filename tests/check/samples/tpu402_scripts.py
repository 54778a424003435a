"""A script that launches workers: its main process must leave the runtime alone."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

DEVICE = xm.xla_device()  # TPU402: runs in the main process, before `xmp.spawn` starts the workers
WORLD = xr.world_size()  # TPU402: `xr.world_size()`


def _mp_fn(index):
    device = xm.xla_device()  # ok: TPU402
    print(index, device, xr.global_ordinal())  # ok: TPU402


def main():
    print("devices:", torch_xla.device_count())  # TPU402: `torch_xla.device_count()`
    xmp.spawn(_mp_fn, args=())
    print("afterwards:", torch_xla.device_count())  # ok: TPU402


if __name__ == "__main__":
    torch.manual_seed(0)  # ok: TPU402
    main()
