"""What is a model, what builds one, how large it is and where it lies."""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from tpu_magics.backends.torch import modules

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("scratch", torch.zeros(2, dtype=torch.int8), persistent=False)

    @classmethod
    def from_pretrained(cls, name: str) -> Net:
        return cls()

    @classmethod
    def other(cls, name: str):
        return cls()


@dataclass
class Config:
    width: int = 4


class Bare:
    width = 4


class Named(NamedTuple):
    width: int = 4


class Doing:
    def __init__(self) -> None:
        self.width = 4


def annotated() -> nn.Module:
    return Net()


def annotated_as_text() -> "nn.Module":  # noqa: UP037
    return Net()


def annotated_as_another() -> int:
    return 4


def unknown_annotation() -> "gone.Module":  # noqa: F821, UP037
    return Net()


def not_annotated():
    return Net()


def named(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


# -- what is a model ------------------------------------------------------------------------------------------------
def test_a_model_is_an_instance():
    assert modules.is_model(Net())
    assert modules.is_model(nn.ReLU())
    for other in (Net, nn.Module, torch.ones(2), nn.Parameter(torch.ones(2)), "Net", None, torch.nn):
        assert not modules.is_model(other)


@pytest.mark.process
def test_nothing_is_imported_to_look():
    code = """
import sys
from tpu_magics.backends.torch import modules as m
class Net: pass
found = [m.is_model(Net()), m.builds_model(Net), m.builds_weightless(Net),
         m.shares_memory(None, Net()), m.tensor_content(Net())]
print([bool(one) for one in found], m.builds_config(Net), m.touches_device(Net()))
print(sorted({"torch", "numpy", "transformers", "accelerate", "torch_xla"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[False, False, False, False, False] True False", "[]"]


BUILDERS = [
    Net,
    nn.Linear,
    nn.Sequential,
    nn.PReLU,
    nn.MultiheadAttention,
    nn.BatchNorm2d,
    nn.Embedding.from_pretrained,
    Net.from_pretrained,
    annotated,
    annotated_as_text,
    functools.partial(Net, 3),
    functools.partial(functools.partial(Net.from_pretrained), "x"),
]
OTHERS = [
    Net.other,
    annotated_as_another,
    unknown_annotation,
    not_annotated,
    nn.CrossEntropyLoss,
    nn.MSELoss,
    nn.ReLU,
    nn.Softmax,
    nn.Dropout,
    nn.MaxPool2d,
    nn.Flatten,
    nn.Upsample,
    nn.DataParallel,
    nn.parallel.DistributedDataParallel,
    torch.optim.SGD,
    torch.ones,
    len,
    int,
    None,
    "Net",
    Net(),
    Net().to,
    Net().forward,
]


@pytest.mark.parametrize("function", BUILDERS, ids=named)
def test_what_builds_a_model(function):
    assert modules.builds_model(function)
    assert not modules.builds_weightless(function)
    assert not modules.builds_config(function)


@pytest.mark.parametrize("function", OTHERS, ids=named)
def test_what_builds_none(function):
    assert not modules.builds_model(function)


def test_modules_without_weights():
    for cls in (nn.ReLU, nn.CrossEntropyLoss, nn.Dropout, functools.partial(nn.Softmax, dim=1), nn.Flatten):
        assert modules.builds_weightless(cls)

    class OwnLoss(nn.modules.loss._Loss):
        pass

    assert modules.builds_weightless(OwnLoss)
    assert not modules.builds_model(OwnLoss)


def test_transformers_classes():
    transformers = pytest.importorskip("transformers")
    auto, bert = transformers.AutoModelForSequenceClassification, transformers.BertModel
    for function in (auto.from_pretrained, auto.from_config, bert.from_pretrained, bert._from_config, bert):
        assert modules.builds_model(function), function
    for function in (
        transformers.AutoTokenizer.from_pretrained,
        transformers.AutoConfig.from_pretrained,
        transformers.BertConfig,
        transformers.BertConfig.from_pretrained,
        transformers.BertTokenizerFast,
        auto.register,
    ):
        assert not modules.builds_model(function), function
    for function in (
        transformers.BertConfig,
        transformers.BertConfig.from_pretrained,
        transformers.AutoConfig.from_pretrained,
        transformers.AutoConfig.for_model,
    ):
        assert modules.builds_config(function), function


def test_settings():
    for function in (
        Config,
        Bare,
        Named,
        dict,
        types.SimpleNamespace,
        argparse.Namespace,
        functools.partial(Config, 3),
    ):
        assert modules.builds_config(function), function
    for function in (Doing, Net, nn.ReLU, object, int, len, print, threading_lock(), None):
        assert not modules.builds_config(function), function


def threading_lock():
    import threading

    return threading.Lock


def test_what_may_start_the_runtime():
    accelerate = pytest.importorskip("accelerate")
    import torch_xla
    import torch_xla.core.xla_model as xm

    for value in (
        *("xla", "xla:0", "torch_xla", "torch_xla.core.xla_model", torch.device("xla")),
        *(
            torch_xla,
            xm,
            xm.xla_device,
            torch_xla.device,
            accelerate,
            accelerate.Accelerator,
            accelerate.utils.set_seed,
        ),
        torch.cuda.manual_seed,
    ):
        assert modules.touches_device(value), value
    for value in ("xlarge", "cpu", "", torch.device("cpu"), torch, nn.Linear, torch.manual_seed, 3, None, Net(), len):
        assert not modules.touches_device(value), value


# -- sizes and places -----------------------------------------------------------------------------------------------
def test_bytes_of_parameters_and_buffers():
    assert modules.model_bytes(Net(4)) == (16 + 4) * 4 + 3 * 8 + 2
    assert modules.model_bytes(nn.ReLU()) == 0
    assert modules.model_bytes(Net(4).to(torch.bfloat16)) == (16 + 4) * 2 + 3 * 2 + 2


def test_what_is_shared_counts_once():
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    assert modules.model_bytes(tied) == 2 * 256
    tied[1].weight = tied[0].weight
    assert modules.model_bytes(tied) == 256
    viewed = nn.Module()
    whole = torch.zeros(100)
    viewed.first, viewed.second = nn.Parameter(whole[:10]), nn.Parameter(whole[10:20])
    assert modules.model_bytes(viewed) == 400


def test_what_lies_nowhere_takes_nothing():
    assert modules.model_bytes(nn.Linear(1000, 1000, device="meta")) == 0
    lazy = nn.LazyLinear(4)
    assert modules.model_bytes(lazy) == 0
    sparse = nn.Module()
    sparse.table = nn.Parameter(torch.eye(10).to_sparse())
    assert modules.model_bytes(sparse) == 10 * 2 * 8 + 10 * 4


def test_the_device():
    assert modules.model_device(Net()) == "cpu"
    assert modules.model_device(nn.ReLU()) == "cpu"
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    assert modules.model_device(mixed) == "meta"


def test_memory_that_is_shared():
    table, array = torch.zeros(10, 4), np.zeros((10, 4), dtype=np.float32)
    assert modules.shares_memory(nn.Embedding.from_pretrained(table), table)
    assert modules.shares_memory(nn.Embedding.from_pretrained(table[2:4]), table)
    assert not modules.shares_memory(nn.Embedding.from_pretrained(table.clone()), table)
    assert modules.shares_memory(nn.Embedding.from_pretrained(torch.from_numpy(array)), array)
    assert modules.shares_memory(nn.Embedding.from_pretrained(torch.from_numpy(array)), array[3:])
    assert not modules.shares_memory(Net(), array)
    assert not modules.shares_memory(Net(), "array")
    assert not modules.shares_memory(Net(), torch.zeros(0))


def test_references_are_replaced_wherever_modules_keep_them():
    old, new = Config(), Config()
    outer, inner = nn.Sequential(Net()), Net()
    outer.config, inner.config, inner.more = old, old, {"listed": [1, old], "other": old}
    outer.append(inner)
    modules.replace_reference(outer, old, new)
    assert outer.config is inner.config is new
    assert inner.more["listed"][1] is inner.more["other"] is new
    assert inner.more["listed"][0] == 1


def test_the_content_of_tensors():
    def content(tensor):
        kind = modules.tensor_content(tensor)
        return [*kind[:-1], kind[-1].tobytes()]

    one = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert content(one) == content(one.clone())
    assert content(one) != content(one + 1)
    assert content(one) != content(one.reshape(3, 2))
    assert content(one) != content(one.float())
    assert content(torch.tensor(3)) == content(torch.tensor(3))
    assert modules.tensor_content(np.zeros(3)) is None
    assert modules.tensor_content("tensor") is None
