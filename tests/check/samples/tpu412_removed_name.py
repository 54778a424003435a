"""Names that torch_xla has removed, and those that stand for them."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.experimental.pjrt as pjrt  # TPU412: `torch_xla.experimental.pjrt` was removed in torch_xla 2.5
import torch_xla.runtime as xr
import transformers
from torch.utils.data.distributed import DistributedSampler
from torch_xla.core.xla_model import get_ordinal  # TPU412: `torch_xla.core.xla_model.get_ordinal` was removed
from torch_xla.experimental import xla_sharding  # TPU412: `torch_xla.experimental.xla_sharding` was removed
from torch_xla.experimental.scan import scan  # ok: TPU412
from transformers import AdamW, BertModel  # TPU412: `transformers.AdamW` was removed in transformers 4.50
from transformers.file_utils import is_torch_tpu_available  # TPU412: `transformers.file_utils.is_torch_tpu_available`

from .parts import xrt_world_size  # ok: TPU412


def train(index, data):
    ranks = xm.xrt_world_size()  # TPU412: `torch_xla.core.xla_model.xrt_world_size` was removed in torch_xla 2.7
    sampler = DistributedSampler(data, num_replicas=ranks, rank=get_ordinal())  # ok: TPU412
    again = DistributedSampler(
        data,
        num_replicas=ranks,
        rank=xm.get_ordinal(defval=0),  # TPU412: `torch_xla.core.xla_model.get_ordinal` was removed in torch_xla 2.7
    )
    device = xr.xla_device()  # TPU412: `torch_xla.runtime.xla_device` was removed in torch_xla 2.8
    local = xm.get_local_ordinal()  # ok: TPU412
    if torch.cuda.is_available():
        ranks = xm.xrt_world_size()  # ok: TPU412
    xm.master_print(xm.xrt_world_size(), flush=True)  # TPU412: `torch_xla.core.xla_model.xrt_world_size` was removed
    return sampler, again, device, local


def of_today(newer):
    if newer:
        return xr.world_size(), xr.global_ordinal(), torch_xla.device()  # ok: TPU412
    return xm.xrt_world_size(), xm.get_ordinal(), xr.xla_device()  # ok: TPU412


def using_pjrt(newer):
    if newer:
        from torch_xla import runtime

        return runtime.device_type() is not None
    from torch_xla.experimental import pjrt as old  # ok: TPU412

    return old.using_pjrt()


try:
    import torch_xla.distributed.spmd as xs
except ImportError:
    import torch_xla.experimental.xla_sharding as xs  # ok: TPU412


def of_any_version():
    ranks = xm.xrt_world_size() if hasattr(xm, "xrt_world_size") else 1  # ok: TPU412
    try:
        return ranks, xm.get_ordinal()  # ok: TPU412
    except (RuntimeError, AttributeError):
        return ranks, 0


def of_another_object(model):
    if hasattr(model, "generate"):
        return xm.get_ordinal()  # TPU412: `torch_xla.core.xla_model.get_ordinal` was removed in torch_xla 2.7
    return 0


def of_one_version():
    try:
        return xm.get_ordinal()  # TPU412: `torch_xla.core.xla_model.get_ordinal` was removed in torch_xla 2.7
    except RuntimeError:
        return 0


def fine_tune(model):
    return transformers.AdamW(model.parameters(), lr=2e-5)  # TPU412: `transformers.AdamW` was removed in transformers


def per_rank(loader):
    return len(loader) // xm.xrt_world_size()  # TPU412: `torch_xla.core.xla_model.xrt_world_size` was removed


xmp.spawn(train, args=(xrt_world_size(), pjrt, xla_sharding, scan, AdamW, BertModel, is_torch_tpu_available, xs))  # ok: TPU412
