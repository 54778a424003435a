"""What torch_xla 2.9 has above its collectives, as its own tests use it: cases for test_rehearse.py, named after what
these tests (test_mp_*, test_zero1, test_syncfree_optimizers, scan, test_while_loop, eager and others) are about."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.backends.torch_xla.rehearsed import Case, data, of_all, on_device

SIZES = (1, 2, 3, 8)
NEAR = 1e-5


def cases() -> Iterator[Case]:
    for name, function in _OF_RANKS.items():
        yield Case(name, function, _EXPECTED[name], sizes=SIZES, tolerance=NEAR)
    for name, same in _ALONE.items():
        yield Case(name, _with(same, "xla"), _with(same, "cpu"), sizes=SIZES, tolerance=NEAR)


def _with(function: Callable[[str], Any], device: str) -> Callable[[int, int], Any]:
    """The same function here and there: a case of each rank for itself."""
    return lambda _rank, _size: function(device)


def _sync() -> None:
    import torch_xla

    torch_xla.sync()


def _seeded(build: Callable[[], nn.Module], device: str = "cpu") -> nn.Module:
    """The same weights on every device and rank."""
    generator = torch.Generator().manual_seed(5)
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return model.to(device)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def _batch(rank: int, device: str = "cpu") -> Tensor:
    return data(rank, (3, 4), seed=3).to(device)


# -- what the ranks do together ----------------------------------------------------------------------------------------


def _batch_norm(rank: int, _size: int) -> Any:
    from torch_xla.core import functions as xf
    from torch_xla.core import xla_model as xm

    norm = xf.SyncBatchNorm(4).to("xla")
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    out = norm(_image(rank).to("xla"))
    (out * _image(rank).to("xla")).sum().backward()
    xm.optimizer_step(optimizer)
    return [out, norm.weight, norm.bias, norm.running_mean]


def _batch_norm_expected(rank: int, size: int) -> Any:
    norm = nn.BatchNorm2d(4)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    images = torch.cat([_image(one) for one in range(size)])
    out = norm(images)
    ((out * images).sum() / size).backward()
    optimizer.step()
    return [out.chunk(size)[rank], norm.weight, norm.bias, norm.running_mean]


def _image(rank: int) -> Tensor:
    return data(rank, (2, 4, 3, 3), seed=9)


def _matmul(rank: int, size: int) -> Any:
    from torch_xla.core import functions as xf

    weight, x = data(0, (3, 2 * size), seed=1), data(0, (2 * size, 4), seed=2)
    return xf.distributed_mm(weight[:, 2 * rank : 2 * rank + 2].to("xla"), x.to("xla"), split=2)


def _zero(rank: int, _size: int) -> Any:
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    model = _seeded(_net, "xla")
    options = {"lr": 0.1, "momentum": 0.9, "grad_clipping": False, "pin_layout": False}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(_batch(rank, "xla")).square().sum().backward()
        optimizer.step()
        _sync()
    return list(model.parameters())


def _zero_expected(_rank: int, size: int) -> Any:
    model = _seeded(_net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.cat([_batch(rank) for rank in range(size)])).square().sum() / size).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def _early_exit(rank: int, _size: int) -> Any:
    """A loader that reads ahead is left in the middle, and the ranks go on."""
    from torch_xla.core import xla_model as xm
    from torch_xla.distributed import parallel_loader as pl

    seen = []
    for batch in pl.MpDeviceLoader([data(rank, (2,), seed=n) for n in range(50)], torch.device("xla:0")):
        xm.all_reduce("sum", [batch])
        seen.append(batch)
        if len(seen) == 3:
            break
    return [*seen, xm.all_reduce("sum", on_device(rank))]


def _early_exit_expected(_rank: int, size: int) -> Any:
    sums = [torch.stack(of_all(size, (2,), seed=n)).sum(0) for n in range(3)]
    return [*sums, torch.stack(of_all(size)).sum(0)]


def _saved(rank: int, _size: int) -> Any:
    from torch_xla.core import xla_model as xm

    state = {"own": on_device(rank), "all": [on_device(0), (on_device(1), 3)]}
    file = io.BytesIO()
    xm.save(state, file, master_only=False)
    sent = xm.rendezvous("saved", file.getvalue())
    return [[one["own"], one["all"]] for one in (torch.load(io.BytesIO(text)) for text in sent)]


def _saved_expected(_rank: int, size: int) -> Any:
    return [[data(rank), [data(0), [data(1), 3]]] for rank in range(size)]


_OF_RANKS: dict[str, Callable[[int, int], Any]] = {
    "SyncBatchNorm": _batch_norm,
    "distributed_mm": _matmul,
    "ZeroRedundancyOptimizer": _zero,
    "MpDeviceLoader-left early": _early_exit,
    "xm.save-all ranks": _saved,
}
_EXPECTED: dict[str, Callable[[int, int], Any]] = {
    "SyncBatchNorm": _batch_norm_expected,
    "distributed_mm": lambda _rank, size: data(0, (3, 2 * size), seed=1) @ data(0, (2 * size, 4), seed=2),
    "ZeroRedundancyOptimizer": _zero_expected,
    "MpDeviceLoader-left early": _early_exit_expected,
    "xm.save-all ranks": _saved_expected,
}


# -- what a rank does alone, against plain torch on the CPU ------------------------------------------------------------


def _checkpointed(device: str) -> Any:
    model = _seeded(_net, device)
    x = _batch(0, device).requires_grad_()
    if device == "xla":
        from torch_xla.utils.checkpoint import checkpoint

        out = checkpoint(model, x)
    else:
        out = model(x)
    out.square().sum().backward()
    return [out, x.grad, *(one.grad for one in model.parameters())]


def _accumulated(device: str) -> Any:
    model = _seeded(_net, device)
    inputs, targets = data(0, (6, 4), seed=1).to(device), data(1, (6, 2), seed=1).to(device)

    def step(batch: Tensor, target: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        return F.mse_loss(model(batch), target), carried + 5

    if device == "xla":
        from torch_xla.experimental.gradient_accumulation import gradient_accumulation

        loss, carried = gradient_accumulation(step, (inputs, targets), model, torch.tensor([5, 5]).to(device))
        return [loss, carried, *(one.grad for one in model.parameters())]
    total, carried = torch.zeros(()), torch.tensor([5, 5])
    for batch, target in zip(inputs, targets, strict=True):
        loss, carried = step(batch, target, carried)
        (loss / 6).backward()
        total += loss.detach() / 6
    return [total, carried, *(one.grad for one in model.parameters())]


def _scanned(device: str) -> Any:
    """A cumulative product whose gradients go back through the loop."""
    init = torch.ones(3).to(device).requires_grad_()
    xs = (data(0, (5, 3), seed=4) + 3).to(device).requires_grad_()

    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return carry * x * 0.5, carry.sin() + x

    if device == "xla":
        from torch_xla.experimental.scan import scan

        last, ys = scan(step, init, xs)
    else:
        last, steps = init, []
        for x in xs:
            last, y = step(last, x)
            steps.append(y)
        ys = torch.stack(steps)
    (last.sum() + ys.sum()).backward()
    return [last, ys, init.grad, xs.grad]


def _scanned_layers(device: str) -> Any:
    layers = [_seeded(lambda: nn.Linear(4, 4), device) for _ in range(5)]
    x = _batch(0, device)
    if device == "xla":
        from torch_xla.experimental.scan_layers import scan_layers

        x = scan_layers(layers, x)
    else:
        x = nn.Sequential(*layers)(x)
    x.square().sum().backward()
    return [x, *(layer.weight.grad for layer in layers)]


def _looped(device: str) -> Any:
    x, count = _batch(0, device), torch.tensor(4, dtype=torch.int32).to(device)

    def goes_on(count: Tensor, _x: Tensor) -> Tensor:
        return count > 0

    def body(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return count - 1, torch.add(x, x)  # torch_xla 2.9 refuses most numbers in a body

    if device == "xla":
        from torch._higher_order_ops.while_loop import while_loop
        from torch_xla.experimental import fori_loop  # noqa: F401 - registers it

        return list(while_loop(goes_on, body, (count, x)))
    while bool(goes_on(count, x)):
        count, x = body(count, x)
    return [count, x]


def _recurrent(device: str) -> Any:
    torch.manual_seed(1)
    if device == "xla":
        from torch_xla.experimental.gru import GRU

        gru = _seeded(lambda: GRU(4, 5, num_layers=2), device)
    else:
        gru = _seeded(lambda: nn.GRU(4, 5, num_layers=2))
    out, hidden = gru(data(0, (6, 2, 4), seed=6).to(device))
    (out.sum() + hidden.square().sum()).backward()
    return [out, hidden, *(one.grad for one in gru.parameters())]


def _sync_free(device: str) -> Any:
    """Gradients that are not finite are left out without a read."""
    found = []
    for name, options in (("SGD", {"lr": 0.1, "momentum": 0.9}), ("Adam", {"lr": 0.1}), ("AdamW", {"lr": 0.1})):
        model = _seeded(_net, device)
        if device == "xla":
            from torch_xla.amp import syncfree

            optimizer = getattr(syncfree, name)(model.parameters(), **options)
        else:
            optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        for skipped in (False, True, False):
            optimizer.zero_grad()
            model(_batch(0, device)).square().sum().backward()
            if device == "xla":
                optimizer.step(found_inf=torch.tensor(float(skipped)).to(device))
                _sync()
            elif not skipped:
                optimizer.step()
        found.append([one.detach() for one in model.parameters()])
    return found


def _closures(device: str) -> Any:
    """Both kinds are called. Another thread calls those with run_async, which must not read: torch_xla 2.9 may raise
    if they do while a step is traced."""
    seen: list[list[Any]] = []
    done = threading.Event()

    def later(step: int) -> None:
        seen.append(["later", step])
        if step == 2:
            done.set()

    for step in range(3):
        x = torch.full((2,), float(step)).to(device) * 2
        if device == "xla":
            from torch_xla.core import xla_model as xm

            xm.add_step_closure(lambda x: seen.append(["closure", x.sum().item()]), (x,))
            xm.add_step_closure(later, (step,), run_async=True)
            _sync()
        else:
            seen.append(["closure", float(x.sum())])
            later(step)
    assert done.wait(60)
    return sorted(seen)


def _updated_views(device: str) -> Any:
    """In place through views, around syncs."""
    x = torch.ones(2, 3).to(device)
    view, alias = x[0], x.detach()
    view[0] = 5
    product = x @ torch.ones(3, 2).to(device)
    if device == "xla":
        _sync()
    alias.add_(1)
    view.mul_(2)
    if device == "xla":
        _sync()
    x.zero_()
    return [product, x, view, alias]


def _eager(device: str) -> Any:
    if device == "cpu":
        return [_step_of_a_net("cpu"), _step_of_a_net("cpu")]
    import torch_xla

    torch_xla.experimental.eager_mode(True)
    try:
        eager = _step_of_a_net(device)
        compiled = torch_xla.compile(lambda: _step_of_a_net(device))()
    finally:
        torch_xla.experimental.eager_mode(False)
    return [eager, compiled]


def _step_of_a_net(device: str) -> Any:
    model = _seeded(_net, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(_batch(0, device)).square().sum().backward()
    optimizer.step()
    return [one.detach() for one in model.parameters()]


def _compiled(device: str) -> Any:
    """torch.compile, forwards and backwards, and again with another size."""
    model = _seeded(_net, device)
    run = torch.compile(model, backend="openxla") if device == "xla" else model
    found = []
    for rows in (3, 3, 2):
        out = run(_batch(0, device)[:rows])
        out.square().sum().backward()
        found += [out.detach(), *(one.grad.clone() for one in model.parameters())]
    return found


_ALONE: dict[str, Callable[[str], Any]] = {
    "checkpoint": _checkpointed,
    "gradient_accumulation": _accumulated,
    "scan": _scanned,
    "scan_layers": _scanned_layers,
    "while_loop": _looped,
    "gru": _recurrent,
    "syncfree": _sync_free,
    "step closures": _closures,
    "views in place": _updated_views,
    "eager mode": _eager,
    "torch.compile": _compiled,
}
