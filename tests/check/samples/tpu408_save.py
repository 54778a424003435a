"""Saving in workers."""

import io
import json
import pickle

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")


def _mp_fn(index, path):
    device = torch_xla.device()
    model = AutoModel.from_pretrained("bert-base-cased").to(device)
    torch.save(model.state_dict(), "model.pt")  # TPU408: `torch.save` runs on every rank
    torch.save({"model": model.state_dict()}, f=path)  # TPU408: `torch.save` runs on every rank
    model.save_pretrained("out")  # TPU408: `model.save_pretrained` runs on every rank
    tokenizer.save_pretrained("out")  # TPU408: `tokenizer.save_pretrained`
    np.save("losses.npy", np.zeros(3))  # TPU408: `np.save`
    save_file({}, "model.safetensors")  # TPU408: `save_file`
    with open("metrics.json", "w") as file:
        json.dump({"loss": 0.0}, file)  # TPU408: `json.dump`
    checkpoint(model)
    finish(model, index)


def checkpoint(model, folder="out"):
    torch.save(model, f"{folder}/whole.pt")  # TPU408: writes the same file on each


def finish(model, rank):
    xm.save(model.state_dict(), "model.pt")  # ok: TPU408
    if xm.is_master_ordinal():
        torch.save(model.state_dict(), "model.pt")  # ok: TPU408
        write(model)
    if rank == 0 and model is not None:
        model.save_pretrained("out")  # ok: TPU408
    torch.save(model.state_dict(), f"model-{rank}.pt")  # ok: TPU408
    torch.save(model.state_dict(), "model-%d.pt" % xr.global_ordinal())  # ok: TPU408
    model.save_pretrained("out", is_main_process=xm.is_master_ordinal(), save_function=xm.save)  # ok: TPU408
    with open(f"metrics-{rank}.json", "w") as file:
        json.dump({"loss": 0.0}, file)  # ok: TPU408
    buffer = io.BytesIO()
    torch.save({"loss": 0.0}, buffer)  # ok: TPU408
    if not xm.is_master_ordinal():
        return
    with open("metrics.pkl", "wb") as file:
        pickle.dump({"loss": 0.0}, file)  # ok: TPU408


def write(model):
    torch.save(model.state_dict(), "model.pt")  # ok: TPU408


def _alone(index):
    torch.save({}, "model.pt")  # ok: TPU408


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=("other.pt",))
    xmp.spawn(_alone, nprocs=1)
    torch.save({}, "model.pt")  # ok: TPU408
