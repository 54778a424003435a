"""Calls inside of compiled functions that torch.compile cannot trace, for TorchTPU."""

import logging
import time
import warnings
from functools import partial

import torch
import torch_tpu
from torch import nn

import tpu_magics

logger = logging.getLogger(__name__)
model = nn.Linear(4, 2).to("tpu")


@torch.compile
def decorated(x):
    print("in the step", x.shape)  # TPU307: `print` inside of a function
    logger.info("step")  # TPU307: `logger.info` inside
    logging.warning("step")  # TPU307: `logging.warning` inside
    warnings.warn("step")  # TPU307: `warnings.warn` inside
    began = time.perf_counter()  # TPU307: `time.perf_counter` inside
    tpu_magics.log(loss=1.0)  # TPU307: `tpu_magics.log` inside
    scale = x.sum().item()  # TPU102: reads the value
    return model(x) * scale, began


@torch.compile(backend="tpu", dynamic=False)
def with_options(x):
    print(x)  # TPU307: `print` inside
    return model(x)


def by_name(x):
    print("traced")  # TPU307: `print` inside
    return x * x.sum().item()  # TPU307: `x.sum().item` inside


def not_compiled(x):
    print("as it comes")  # ok: TPU307
    logger.info("fine")  # ok: TPU307
    return x.sum().item()  # ok: TPU307


@torch.compile
def calls_another(x):
    def inner(y):
        print("not seen here")  # ok: TPU307
        return y

    return inner(x).log()  # ok: TPU307


@partial(torch.no_grad)
def decorated_otherwise(x):
    print(x)  # ok: TPU307
    return x


compiled = torch.compile(by_name)
short = torch.compile(lambda x: print(x) or x)  # TPU307: `print` inside
plain = lambda x: print(x) or x  # ok: TPU307


def train():
    for _step in range(10):
        loss, _ = decorated(torch.ones(2, 4).to("tpu"))
        print("between the steps")  # ok: TPU307
        tpu_magics.log(loss=loss)  # ok: TPU307
