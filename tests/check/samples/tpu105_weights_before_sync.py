"""Loops in which weights are read for themselves, before and after the step has run."""

import copy

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl


def best_state(model, optimizer, loader, device):
    best = {}
    for x, y in loader:
        loss = F.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        best = {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}  # TPU105: one.detach().cpu() reads weights before the step has run
        torch_xla.sync()
        best = {name: one.detach().cpu().clone() for name, one in model.state_dict().items()}  # ok: TPU105
    return best


def average_on_the_host(device):
    model = torch.nn.LSTM(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = [one.cpu() for one in model.parameters()]  # ok: TPU105
    for x in pl.MpDeviceLoader([torch.randn(2, 3, 4)], device):
        model(x)[0].sum().backward()
        xm.optimizer_step(optimizer)
        for own, one in zip(average, model.parameters()):
            own.lerp_(one.detach().to("cpu"), 0.1)  # TPU105: one.detach().to("cpu") reads weights  # TPU102: reads the value of
    return average, [one.cpu() for one in model.parameters()]  # ok: TPU105


def norms(model, optimizer, loader, writer, device):
    for step, (x, y) in enumerate(loader):
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        for name, one in model.named_parameters():
            writer.add_scalar(name, one.norm().item(), step)  # TPU105: one.norm().item() reads weights  # TPU102: reads the value of
        if step % 100 == 0:
            largest = max(float(one.abs().max()) for one in model.parameters())  # TPU105: float(one.abs().max()) reads weights
            print(largest)
        total = sum(one.norm() ** 2 for one in model.parameters()).sqrt().item()  # ok: TPU105  # TPU102: reads the value of
        shapes = [tuple(one.shape) for one in model.parameters()]  # ok: TPU105
        count = sum(one.numel() for one in model.parameters())  # ok: TPU105
        xm.mark_step()
        for name, one in model.named_parameters():
            writer.add_scalar(name, one.norm().item() + total + count + len(shapes), step)  # ok: TPU105  # TPU102: reads the value of


def saves(model, optimizer, loader, device):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        torch.save(model.state_dict(), "now.pt")  # TPU105: torch.save(model.state_dict(), "now.pt") reads weights
        torch.save({"model": model.state_dict(), "epoch": 1}, "all.pt")  # TPU105: reads weights before the step has run
        xm.save(model.state_dict(), "whole.pt")  # ok: TPU105
        torch.save(copy.deepcopy(y), "y.pt")  # ok: TPU105
        torch_xla.sync()
        torch.save(model.state_dict(), "later.pt")  # ok: TPU105


def with_barrier(model, optimizer, loader, device):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        xm.optimizer_step(optimizer, barrier=True)
        print([one.mean().item() for one in model.parameters()])  # ok: TPU105  # TPU102: reads the value of


def buffers(model, optimizer, loader, device):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        if x.shape[0] > 1:
            optimizer.step()
        means = [one.cpu().numpy() for one in model.buffers()]  # TPU105: one.cpu() reads weights  # TPU102: reads the value of
        finish(means)


def finish(means):
    torch_xla.sync()
    return means


def through_a_function(model, optimizer, loader, device):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        finish([])
        print([one.tolist() for one in model.parameters()])  # ok: TPU105  # TPU102: reads the value of
        optimizer.step()
        print([one.tolist() for one in model.parameters()])  # TPU105: one.tolist() reads weights  # TPU102: reads the value of


def in_closures(model, optimizer, loader, device):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        xm.add_step_closure(lambda: print([one.norm().item() for one in model.parameters()]))  # ok: TPU105
        torch_xla.sync()


def one_or_the_other(model, optimizer, loader, device, dry):
    for x, y in loader:
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        if dry:
            print([one.grad.norm().item() for one in model.parameters()])  # ok: TPU105  # TPU102: reads the value of
        else:
            optimizer.step()
        torch_xla.sync()
