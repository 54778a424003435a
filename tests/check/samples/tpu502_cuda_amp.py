"""A script for a GPU that was moved to a TPU: what is left of its mixed precision."""

import torch
import torch.cuda.amp as amp
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from accelerate import Accelerator, notebook_launcher
from torch.cuda.amp import GradScaler, autocast
from torch_xla.amp import autocast as xla_autocast
from transformers import AutoModelForCausalLM, TrainingArguments, pipeline

DTYPE = torch.float16
MIXED = "fp16"
LOADING = {"torch_dtype": torch.float16, "low_cpu_mem_usage": True}

torch.set_default_dtype(torch.float16)  # TPU502: makes float16 the default
torch.set_default_dtype(torch.bfloat16)  # ok: TPU502
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16)  # TPU502: torch_dtype=torch.float16
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype="float16")  # TPU502: dtype="float16"
model = AutoModelForCausalLM.from_pretrained("gpt2", **LOADING)  # TPU502: torch_dtype=torch.float16
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.bfloat16)  # ok: TPU502
model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype="auto")  # ok: TPU502
generator = pipeline("text-generation", model="gpt2", torch_dtype=DTYPE)  # TPU502: torch_dtype=DTYPE


def train(dataset):
    device = xm.xla_device()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = GradScaler()  # TPU502: GradScaler scales gradients for float16
    scalers = [amp.GradScaler(init_scale=1024), torch.amp.GradScaler("cuda")]  # TPU502: scales gradients
    off = GradScaler(enabled=False)  # ok: TPU502
    gpu = GradScaler(enabled=torch.cuda.is_available())  # ok: TPU502
    for batch in pl.MpDeviceLoader(torch.utils.data.DataLoader(dataset, batch_size=8, drop_last=True), device):
        optimizer.zero_grad()
        with autocast():  # TPU502: mixed precision for CUDA
            loss = model(**batch).loss
        with torch.autocast("cuda", dtype=torch.bfloat16):  # TPU502: mixed precision for CUDA
            loss = model(**batch).loss
        with torch.autocast(device_type="cuda"):  # TPU502: mixed precision for CUDA
            loss = model(**batch).loss
        with torch.amp.autocast("xla", dtype=torch.float16):  # TPU502: computes in float16
            loss = model(**batch).loss
        with xla_autocast(device, dtype=torch.float16):  # TPU502: computes in float16
            loss = model(**batch).loss
        with torch.autocast("xla", dtype=torch.bfloat16):  # ok: TPU502
            loss = model(**batch).loss
        with xla_autocast(device):  # ok: TPU502
            loss = model(**batch).loss
        with torch.autocast("cpu", dtype=torch.bfloat16):  # ok: TPU502
            check = loss * 2
        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):  # ok: TPU502
            loss = model(**batch).loss
        with torch.autocast("cuda", enabled=False):  # ok: TPU502
            loss = model(**batch).loss
        scaler.scale(loss).backward()  # ok: TPU502
        scaler.step(optimizer)  # ok: TPU502
        scaler.update()  # ok: TPU502
        torch_xla.sync()


class Net(torch.nn.Module):
    @autocast()  # TPU502: mixed precision for CUDA
    def forward(self, x):
        return x * 2

    @torch.autocast("xla", dtype=torch.bfloat16)  # ok: TPU502
    def infer(self, x):
        return x * 2


def training_function(model):
    accelerator = Accelerator(mixed_precision="fp16")  # TPU502: mixed_precision="fp16"
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=MIXED)  # TPU502: Accelerator uses
    accelerator = Accelerator(mixed_precision="bf16")  # ok: TPU502
    accelerator = Accelerator(mixed_precision="no")  # ok: TPU502
    with accelerator.autocast():  # ok: TPU502
        pass


notebook_launcher(training_function, (model,), mixed_precision="fp16")  # TPU502: notebook_launcher uses
notebook_launcher(training_function, (model,), mixed_precision="bf16", num_processes=8)  # ok: TPU502


def on_any_machine(args, dataset):
    """Runs on a GPU as well, and asks first."""
    if torch.cuda.is_available():
        scaler = torch.cuda.amp.GradScaler()  # ok: TPU502
        context = torch.cuda.amp.autocast()  # ok: TPU502
    else:
        scaler = None
        context = torch.autocast("xla", dtype=torch.bfloat16)  # ok: TPU502
    if not args.use_xla:
        scaler = torch.amp.GradScaler("cuda")  # ok: TPU502
    return scaler if args.device == "cuda" else None, context
