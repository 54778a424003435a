"""Programs for TorchTPU in the form of those for torch_xla: what a run of each has to be told.

Each is a function without arguments that trains in a worker. EXPECTED: for each, the causes of its recompiles in their
order, with words that the sentence about the first has to contain. The line whose call compiles ends with `# site`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

EXPECTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "varying_length": (("input-shape",) * 3, ("x", "9", "7")),
    "last_batch": (("last-batch",), ("20", "32")),
    "python_number": (("python-number",) * 2, ("keep", "1")),
    "input_dtype": (("input-dtype",), ("x",)),
    "mode_switch": (("mode-switch",), ("training",)),
    "growing_list": (("live-tensors",) * 2, ("length",)),
    "another_function": (("new-code",), ()),
    "nothing_recompiles": ((), ()),
}


def device() -> Any:
    return torch.device("tpu")


def varying_length() -> None:
    weight = torch.randn(8, 4).to(device())
    compiled = torch.compile(lambda x: (x @ weight).pow(2).mean(), dynamic=False)
    for length in (7, 9, 12, 7, 15):
        compiled(torch.randn(length, 8).to(device()))  # site


def last_batch() -> None:
    weight = torch.randn(8, 4).to(device())
    compiled = torch.compile(lambda x: (x @ weight).pow(2).mean(), dynamic=False)
    data = torch.utils.data.TensorDataset(torch.randn(84, 8))
    for _epoch in range(2):
        for (x,) in torch.utils.data.DataLoader(data, batch_size=32):
            compiled(x.to(device()))  # site


def python_number() -> None:
    weight = torch.randn(8, 4).to(device())
    compiled = torch.compile(lambda x, keep: (x @ weight * keep).mean(), dynamic=False)
    for step in range(6):
        compiled(torch.randn(4, 8).to(device()), 1 + step % 3)  # site


def input_dtype() -> None:
    compiled = torch.compile(lambda x: (x * 2).sum(), dynamic=False)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        compiled(torch.ones(4, dtype=dtype).to(device()))  # site


def mode_switch() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).to(device())
    compiled = torch.compile(lambda x: model(x).sum(), dynamic=False)
    for training in (True, False, True):
        model.train(training)
        compiled(torch.ones(2, 8).to(device()))  # site


def growing_list() -> None:
    compiled = torch.compile(lambda values: torch.stack(values).sum(), dynamic=False)
    values: list[Any] = []
    for _step in range(3):
        values.append(torch.ones(2).to(device()))
        compiled(values)  # site


def another_function() -> None:
    compiled = torch.compile(lambda f, x: f(x).sum(), dynamic=False)
    for function in (torch.sin, torch.cos):
        compiled(function, torch.ones(3).to(device()))  # site


def nothing_recompiles() -> None:
    model = nn.Linear(8, 4).to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(lambda x: model(x).pow(2).mean(), dynamic=False)
    for _step in range(4):
        optimizer.zero_grad()
        compiled(torch.randn(4, 8).to(device())).backward()  # site
        optimizer.step()


def graph_break() -> None:
    def step(x: Any) -> Any:
        y = x * 2
        print("the sum is", y.sum().item())
        return (y + 1).sum()

    torch.compile(step)(torch.ones(4).to(device()))
