"""bfloat16 through the environment, as old guides have it."""

import os
import subprocess
from os import environ

import torch
import torch_xla.core.xla_model as xm

FLAG = "XLA_USE_BF16"
SETTINGS = {"batch_size": 8, "XLA_DOWNCAST_BF16": "1"}  # TPU501: XLA_DOWNCAST_BF16 is set in the environment
NOTES = {"XLA_USE_BF16": False, "precision": "bf16"}  # ok: TPU501

os.environ["XLA_USE_BF16"] = "1"  # TPU501: XLA_USE_BF16 is set in the environment
environ["XLA_DOWNCAST_BF16"] = "1"  # TPU501: XLA_DOWNCAST_BF16
os.environ[FLAG] = str(1)  # TPU501: XLA_USE_BF16
os.environ.setdefault("XLA_USE_BF16", "1")  # TPU501: XLA_USE_BF16
os.environ.update(XLA_USE_BF16="1")  # TPU501: XLA_USE_BF16
os.environ.update({"XLA_USE_FP16": "1", "PJRT_DEVICE": "TPU"})  # TPU501: XLA_USE_FP16
os.putenv("XLA_DOWNCAST_FP16", "true")  # TPU501: XLA_DOWNCAST_FP16
os.environ["PJRT_DEVICE"] = "TPU"  # ok: TPU501
os.environ["XLA_USE_SPMD"] = "1"  # ok: TPU501
os.environ["XLA_USE_BF16"] = "0"  # ok: TPU501
os.environ.setdefault("XLA_DOWNCAST_BF16", "0")  # ok: TPU501


def precision():
    if os.environ.get("XLA_USE_BF16") == "1":  # ok: TPU501
        return "bf16"
    return "bf16-downcast" if os.getenv("XLA_DOWNCAST_BF16", "0") == "1" else "fp32"  # ok: TPU501


def configure(args):
    if args.bf16:
        os.environ["XLA_USE_BF16"] = "1"  # TPU501: set in the environment
    os.environ["XLA_DOWNCAST_BF16"] = "1" if args.downcast else "0"  # TPU501: XLA_DOWNCAST_BF16


def cleared():
    saved = os.environ.pop("XLA_USE_BF16", None)  # ok: TPU501
    if "XLA_DOWNCAST_BF16" in os.environ:  # ok: TPU501
        del os.environ["XLA_DOWNCAST_BF16"]  # ok: TPU501
    try:
        return xm.xla_device()
    finally:
        if saved is not None:
            os.environ["XLA_USE_BF16"] = saved  # ok: TPU501


def worker(script):
    env = dict(os.environ, XLA_USE_BF16="1")  # TPU501: XLA_USE_BF16
    return subprocess.run(["python", script], env=env, check=True)


def step(model, batch):
    with torch.autocast("xla", dtype=torch.bfloat16):  # ok: TPU501
        return model(**batch).loss
