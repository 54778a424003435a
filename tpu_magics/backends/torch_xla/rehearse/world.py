"""Sets rank and world size in torch_xla 2.9.0 for a rehearsal: N processes with one device each."""

from __future__ import annotations

from typing import Any


def enter(rank: int, size: int, local: int) -> None:
    """Make this worker rank `rank` of `size` for torch_xla.runtime, and for everything that uses it (xm,
    torch.distributed's "xla" backend, accelerate, transformers), until the process ends; `local`: its number on its
    host."""
    import torch_xla
    import torch_xla.runtime as xr

    xr._WORLD_SIZE = size
    xr._ORDINAL = rank
    # local_ordinal() would read a variable that is 0 until the first compile (observe/xla_dumps.py).
    values = {"global_device_count": size, "global_runtime_device_count": size, "local_ordinal": local}
    for name, value in values.items():
        setattr(xr, name, _always(value))
    # The C++ module only knows this process: xr.process_index() and process_count() call it.
    counted = {
        "_xla_get_process_index": rank,
        "_xla_get_num_processes": size,
        "_xla_get_default_device_ordinal": rank,
    }
    for name, value in counted.items():
        setattr(torch_xla._XLAC, name, _always(value))


def _always(value: int) -> Any:
    return lambda *_args, **_kwargs: value
