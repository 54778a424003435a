"""A plain training loop, and how one begins, for tests that look at what is recorded or traced of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def placed(model: Any) -> tuple[Any, torch.optim.SGD]:
    """Move the model to the device; the device, and an optimizer."""
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    return device, torch.optim.SGD(model.parameters(), lr=0.1)


def squares(model: Any, x: Any, *_: Any) -> Any:
    """A loss that needs no target."""
    return model(x).pow(2).mean()


def sgd(
    model: Any,
    batches: Iterable[Any],
    loss_of: Callable[..., Any] = squares,
    *,
    reads: bool = False,
    batches_each: int = 1,
) -> None:
    """A backward pass and a sync for each batch, an optimizer step for every `batches_each`; `reads`: the loss, in the
    middle of the step."""
    import torch_xla

    device, optimizer = placed(model)
    for number, batch in enumerate(batches, 1):
        loss = loss_of(model, *(one.to(device) for one in batch))
        loss.backward()
        if reads:
            print(number, loss.item())
        if number % batches_each == 0:
            optimizer.step()
            optimizer.zero_grad()
        torch_xla.sync()
