"""Kernels that were made for another device, and code that a TPU runs."""

import torch
import torch_xla
import triton
import triton.language as tl
from torch.utils import cpp_extension
from torch.utils.cpp_extension import load_inline
from torch_xla.experimental.custom_kernel import make_kernel_from_pallas

swish = cpp_extension.load("swish", ["swish.cu"])  # TPU411: cpp_extension.load loads operations
add = load_inline("add", cpp_sources="", cuda_sources="", functions=["add"])  # TPU411: load_inline loads operations
torch.ops.load_library("ops.so")  # TPU411: torch.ops.load_library
pallas = make_kernel_from_pallas(lambda x: x, lambda x: [x])  # ok: TPU411
if torch.cuda.is_available():
    more = cpp_extension.load("more", ["more.cu"])  # ok: TPU411


@triton.jit
def kernel(x, size: tl.constexpr):  # TPU411: kernel is a Triton kernel
    tl.store(x, tl.load(x) * 2)


@torch.jit.script
def doubled(x):  # ok: TPU411
    return x * 2


weights = torch.load("weights.pt")  # ok: TPU411


def of_the_person(path):
    torch.classes.load_library(path)  # TPU411: torch.classes.load_library loads operations
    return cpp_extension.load_inline("more", cpp_sources="", functions=["more"])  # TPU411: loads operations


@triton.autotune(configs=[], key=["size"])
@triton.jit
def tuned(x, size: tl.constexpr):  # TPU411: tuned is a Triton kernel
    tl.store(x, tl.load(x) * 2)


state = torch.hub.load("pytorch/vision", "resnet18")  # ok: TPU411
compiled = torch.compile(doubled, backend="openxla")  # ok: TPU411
torch.ops.load_library("more.so")  # TPU411: torch.ops.load_library loads operations
library = torch.library.Library("mine", "DEF")  # ok: TPU411
scripted = torch.jit.load("scripted.pt")  # ok: TPU411
