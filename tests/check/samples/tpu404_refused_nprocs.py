import os

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.distributed.xla_multiprocessing as multi
from accelerate import notebook_launcher
from accelerate.launchers import notebook_launcher as start
from torch_xla.distributed.xla_multiprocessing import spawn

NUM_CORES = 8
FLAGS = {"num_cores": 4, "lr": 0.1}


def _mp_fn(index, flags):
    print(index, flags)


def train(flags):
    print(flags)


def chosen():
    return int(os.environ["CHIPS"])


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=8)  # TPU404: `xmp.spawn` is called with 8 processes.
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=NUM_CORES, start_method="fork")  # TPU404: called with 8 processes
    multi.spawn(_mp_fn, (FLAGS,), 4)  # TPU404: called with 4 processes
    spawn(_mp_fn, (FLAGS,), nprocs=2 * 4)  # TPU404: called with 8 processes
    xmp.spawn(_mp_fn, args=(FLAGS,), **{"nprocs": 8})  # TPU404: called with 8 processes
    notebook_launcher(train, (FLAGS,), num_processes=4)  # TPU404: `notebook_launcher` is called with 4 processes.
    notebook_launcher(train, (FLAGS,), 2)  # TPU404: called with 2 processes
    start(train, args=(FLAGS,), num_processes=NUM_CORES * 2, mixed_precision="bf16")  # TPU404: called with 16 processes

    xmp.spawn(_mp_fn, args=(FLAGS,))  # ok: TPU404
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=1)  # ok: TPU404
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=None)  # ok: TPU404
    xmp.spawn(_mp_fn, args=(FLAGS,), nprocs=chosen())  # ok: TPU404
    torch_xla.launch(_mp_fn, args=(FLAGS,))  # ok: TPU404
    notebook_launcher(train, (FLAGS,))  # ok: TPU404
    notebook_launcher(train, (FLAGS,), num_processes=8)  # ok: TPU404
    notebook_launcher(train, (FLAGS,), num_processes=1)  # ok: TPU404
    notebook_launcher(train, (FLAGS,), num_processes=2, mixed_precision="fp16")  # ok: TPU404  # TPU502: notebook_launcher
