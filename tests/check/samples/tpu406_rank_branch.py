"""Collectives and conditions on the rank."""

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.core.xla_model as xla
import torch_xla.runtime as xr
from accelerate import Accelerator, PartialState
from accelerate.utils import gather_object


def with_accelerate(model, loader, optimizer):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process and step % 100 == 0:
            accelerator.print(accelerator.gather(loss).mean())  # TPU406: The collective `accelerator.gather` is called under
        if step % 100 == 0:
            losses = accelerator.gather(loss)  # ok: TPU406
            if accelerator.is_main_process:
                print(losses.mean().item())
    accelerator.wait_for_everyone()  # ok: TPU406
    if accelerator.is_local_main_process:
        accelerator.wait_for_everyone()  # TPU406: which depends on the rank
        accelerator.unwrap_model(model).save_pretrained("out")
    if not accelerator.is_main_process:
        return
    predictions = accelerator.gather_for_metrics(model(**batch).logits)  # TPU406: `accelerator.gather_for_metrics`
    print(predictions.shape)


def first_of_all(accelerator, dataset):
    with accelerator.main_process_first():
        dataset = dataset.map(lambda row: row)
        accelerator.wait_for_everyone()  # ok: TPU406
    if accelerator.num_processes > 1:
        gather_object([1])  # ok: TPU406
    return dataset


def with_xm(optimizer, loss):
    rank = xr.global_ordinal()
    is_master = xm.is_master_ordinal()
    if rank == 0:
        xm.rendezvous("saved")  # TPU406: The collective `xm.rendezvous` is called under `rank == 0`
    if is_master:
        total = xla.mesh_reduce("loss", loss, sum)  # TPU406: `xla.mesh_reduce` is called under `is_master`
    mean = xm.mesh_reduce("loss", loss, sum) if xm.is_master_ordinal() else 0  # TPU406: under `xm.is_master_ordinal()`
    if rank % 2:
        xm.optimizer_step(optimizer)  # ok: TPU406
    else:
        xm.optimizer_step(optimizer)  # ok: TPU406
    if xr.world_size() > 1:
        xm.all_reduce(xm.REDUCE_SUM, [loss])  # ok: TPU406
    return mean


def download_once():
    if not xm.is_master_ordinal():
        xm.rendezvous("download")  # ok: TPU406
    data = torch.load("data.pt")
    if xm.is_master_ordinal():
        xm.rendezvous("download")  # ok: TPU406
    return data


def gathered(value):
    return xm.all_gather(value)  # ok: TPU406


def report(value):
    print(gathered(value).mean())


def through_functions(value, step):
    if xm.get_ordinal() == 0:  # TPU412: `torch_xla.core.xla_model.get_ordinal` was removed
        report(value)  # TPU406: `report` contains the collective `xm.all_gather` and is called under
    if step % 10 == 0:
        report(value)  # ok: TPU406
    return PartialState().is_main_process and gathered(value)  # TPU406: `gathered` contains the collective


def with_distributed(tensor):
    rank = dist.get_rank()
    if rank == 0:
        dist.broadcast(tensor, src=0)  # ok: TPU406
    else:
        dist.broadcast(tensor, src=0)  # ok: TPU406
    if rank < 2:
        dist.all_reduce(tensor, group=dist.new_group([0, 1]))  # ok: TPU406
    if rank != 0:
        dist.barrier()  # TPU406: `dist.barrier`
        return
    print(tensor)


accelerator = Accelerator()


@accelerator.on_main_process
def only_on_main(loss):
    print(accelerator.reduce(loss))  # TPU406: in `only_on_main`, which only one rank runs


def log(loss):
    xm.add_step_closure(print, args=(loss,))  # ok: TPU406
    if xm.is_master_ordinal():
        xm.save({"loss": loss}, "loss.pt")  # ok: TPU406
