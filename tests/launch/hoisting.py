"""What the tests of hoisting share: cells, plans, and real forked workers.

Cells are compiled and put into linecache, as IPython does it. A worker is a fork that runs the function in a new
thread.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import linecache
import os
import pickle
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.torch_xla import TorchXla
from tpu_magics.launch.hoist import HoistPlan, plan_hoists, replace_calls

NUMBERS = itertools.count(1)


BACKEND = TorchXla()

NOTEBOOK = """
import random, os, copy, functools, types
import numpy as np
import torch
from torch import nn
from dataclasses import dataclass

class Net(nn.Module):
    def __init__(self, width=4, depth=1, **more):
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.more = more
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

class Configured(nn.Module):
    def __init__(self, config, scale=1.0):
        super().__init__()
        self.config = config
        self.layer = nn.Linear(config.width, config.width)

class Builder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        config.built = True
        self.layer = nn.Linear(config.width, config.width)

@dataclass
class Config:
    width: int = 4
    depth: int = 1

def seed(number):
    "Python reseeds random in a fork, so that only seeded numbers can be compared."
    random.seed(number); np.random.seed(number); torch.manual_seed(number)

def bits(model):
    return [p.detach().numpy().tobytes() for p in model.parameters()]

def stream():
    return torch.randperm(8).tolist(), np.random.rand(3).tolist(), random.random()

def losses(model, width=4, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        x = torch.randn(5, width)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        found.append(loss.item())
    return found
"""


@dataclass
class Notebook:
    """Cells that share their names: those of a module, as `__main__` is one."""

    names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        module = sys.modules["a_notebook"] = types.ModuleType("a_notebook")
        self.names = vars(module)
        self.run(NOTEBOOK)

    def run(self, text: str) -> str:
        """Run a cell; its file name."""
        text = textwrap.dedent(text)
        filename = f"<ipython-input-{next(NUMBERS)}-hoist>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        exec(compile(text, filename, "exec", dont_inherit=True), self.names)
        return filename

    def plan(self, name: str, *args: Any, **kwargs: Any) -> HoistPlan:
        """The plan for calling the function `name` with these arguments."""
        function = self.names[name]
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return plan_hoists(function, arguments=bound.arguments, namespace=self.names, backend=BACKEND)

    def plan_of(self, text: str, name: str = "train", *args: Any) -> HoistPlan:
        """Define functions in a cell, and plan one of them."""
        self.run(text)
        return self.plan(name, *args)

    def plan_cell(self, text: str) -> tuple[ast.Module, HoistPlan]:
        """The plan for a cell's statements."""
        text = textwrap.dedent(text)
        tree = ast.parse(text)
        return tree, plan_hoists(tree, arguments={}, namespace=self.names, backend=BACKEND, source=text)


@dataclass(frozen=True)
class Outcome:
    """What a worker came back with. `inherited`: for each hoisted model, whether the function used that one."""

    value: Any
    declined: list[tuple[int, str]]
    printed: str


def in_worker(call: Callable[[], Any], plan: HoistPlan | None = None, replicas: int = 1) -> Outcome:
    """Fork; install the plan there; call in `replicas` new threads, one after the other; its value, or the list."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(_work(call, plan, replicas), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    outcome = pickle.loads(data)
    if isinstance(outcome, str):
        raise AssertionError(f"the worker failed:\n{outcome}")
    return outcome


def _work(call: Callable[[], Any], plan: HoistPlan | None, replicas: int) -> Outcome | str:
    import io

    declined: list[tuple[int, str]] = []
    values: list[Any] = []
    failures: list[str] = []

    def body() -> None:
        try:
            values.append(call())
        except BaseException:
            failures.append(traceback.format_exc())

    printed = sys.stdout = io.StringIO()
    if plan is not None:
        plan.install(lambda number, reason: declined.append((number, reason)), replicas=replicas)
    for _ in range(replicas):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    if failures:
        return failures[0]
    return Outcome(values if replicas > 1 else values[0], declined, printed.getvalue())


def both(notebook: Notebook, plan: HoistPlan, name: str = "train", *args: Any) -> tuple[Outcome, Outcome]:
    """The function without and with hoisting."""
    function = notebook.names[name]
    return in_worker(lambda: function(*args)), in_worker(lambda: function(*args), plan)


def same(notebook: Notebook, plan: HoistPlan, name: str = "train", *args: Any, declined: Any = ()) -> Any:
    """The value that the function has without and with hoisting; `declined`: what the worker builds itself, and why."""
    off, on = both(notebook, plan, name, *args)
    assert on.value == off.value
    assert on.declined == list(declined)
    return on.value


def run_cell(notebook: Notebook, tree: ast.Module, plan: HoistPlan, result: str, *, hoisted: bool) -> Outcome:
    """The value of the expression `result` after a cell has run in a worker."""
    code = compile(replace_calls(tree, plan) if hoisted else tree, "<cell>", "exec", dont_inherit=True)

    def call() -> Any:
        exec(code, notebook.names)
        return eval(result, notebook.names)

    return in_worker(call, plan if hoisted else None)


def states() -> Any:
    """Random states and environment, comparable."""
    state = BACKEND.randomness.random_state()
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    numbers = pickle.dumps((state.python, state.numpy, state.torch.numpy(), state.modes))
    return hashlib.sha256(numbers).hexdigest(), environ


def reasons(plan: HoistPlan) -> Mapping[str, str]:
    """Code -> reason of what was declined."""
    return {one.code: one.reason for one in plan.declined}
