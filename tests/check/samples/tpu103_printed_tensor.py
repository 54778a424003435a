"""Showing what a step computes: prints, logging, progress bars and trackers."""

import logging
import sys
import warnings

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
import wandb
from torch.utils.tensorboard import SummaryWriter
from tqdm.auto import tqdm

logger = logging.getLogger(__name__)


def report(step, value):
    print("step", step, value)  # TPU103: print() reads the value of value


def show_later(step, value):
    print("step", step, value)  # ok: TPU103


def train(model, optimizer, loader, args):
    device = xm.xla_device()
    model.to(device)
    writer = SummaryWriter(args.log_dir)
    run = wandb.init(project="demo")
    progress = tqdm(pl.MpDeviceLoader(loader, device), desc=f"rank {xr.global_ordinal()}")  # ok: TPU103
    print(f"training {model.__class__.__name__} on {device}")  # ok: TPU103
    for step, (data, target) in enumerate(progress):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        xm.optimizer_step(optimizer)
        print(loss)  # TPU103: print() reads the value of loss in each step
        print("loss:", loss, file=sys.stderr)  # TPU103: print() reads the value of loss
        print(f"step {step}: loss {loss:.4f}")  # TPU103: print() reads the value of loss
        print("loss %.4f at %d" % (loss, step))  # TPU103: print() reads the value of loss
        print("loss {:.4f}".format(loss))  # TPU103: print() reads the value of loss
        xm.master_print("loss", loss)  # TPU103: xm.master_print() reads the value of loss
        text = f"step {step}, loss {loss}"  # TPU103: The f-string reads the value of loss
        text = "loss: " + str(loss.detach())  # TPU103: str() reads the value of loss.detach()
        text += "%s" % loss  # TPU103: The text reads the value of loss
        logging.info("loss %s", loss)  # TPU103: logging.info() reads the value of loss
        logger.info(f"step {step}: {loss}")  # TPU103: logger.info() reads the value of loss
        tqdm.write(f"loss {loss}")  # TPU103: tqdm.write() reads the value of loss
        progress.set_postfix(loss=loss)  # TPU103: progress.set_postfix() reads the value of loss
        progress.set_description(f"loss {loss.detach():.3f}")  # TPU103: progress.set_description() reads
        wandb.log({"loss": loss, "step": step})  # TPU103: wandb.log() reads the value of loss
        run.log({"train/loss": loss.detach()})  # TPU103: run.log() reads
        writer.add_scalar("loss", loss, step)  # TPU103: writer.add_scalar() reads the value of loss
        sys.stdout.write(repr(output[0]) + "\n")  # TPU103: sys.stdout.write() reads the value of output[0]
        warnings.warn(f"large loss {loss}") if args.noisy else None  # TPU103: warnings.warn() reads
        report(step, loss)
        print(step, data.shape, target.size(0), output.dtype, loss.device, text)  # ok: TPU103
        print(f"step {step}: {data.shape[0]} rows, lr {optimizer.param_groups[0]['lr']}")  # ok: TPU103
        progress.set_postfix(step=step, rows=data.size(0), epoch=args.epoch)  # ok: TPU103
        logger.debug("shapes %s %s", tuple(data.shape), target.dtype)  # ok: TPU103
        xm.add_step_closure(show_later, args=(step, loss))  # ok: TPU103
        xm.add_step_closure(lambda s=step, value=loss: print(s, value))  # ok: TPU103
        if step % args.log_steps == 0:
            print(f"step {step}: {loss}")  # ok: TPU103
            wandb.log({"loss": loss}, step=step)  # ok: TPU103
        if step in (0, 10):
            print(output)  # ok: TPU103
        if args.max_steps and step >= args.max_steps:
            print("last loss", loss)  # ok: TPU103
            break
        try:
            model.check(output)
        except ValueError:
            print("bad output", output)  # ok: TPU103
            raise
        assert output.shape[0] == target.shape[0], f"{output} and {target}"  # ok: TPU103
    print("loss", loss)  # ok: TPU103
    logger.info("final %s", loss)  # ok: TPU103


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        print("weights", self.fc.weight)  # ok: TPU103

    def extra_repr(self):
        return f"mean weight {self.fc.weight.mean()}"  # ok: TPU103

    def forward(self, x):
        print("input", x.shape)  # ok: TPU103
        h = self.fc(x)
        print("hidden", h)  # TPU103: print() reads the value of h
        if h.shape[-1] != 2:
            raise ValueError(f"unexpected hidden state {h}")  # ok: TPU103
        return F.log_softmax(h, dim=-1)
