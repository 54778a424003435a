"""A function traced, the same function trained, and their comparison.

What a real training compiles is read from XLA's own dumps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.xla_flags import QUICK
from tpu_magics.backends import hlo
from tpu_magics.backends.lowered import LoweredGraph, TraceResult
from tpu_magics.launch import session, train
from tpu_magics.launch.options import Options
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.pipeline import trace

PATIENCE = 200.0  # seconds: the programs are small, but machines may be busy
Function = Callable[..., Any]
Compiled = tuple[str, tuple[int, ...]]  # fingerprint, donated parameters


def rows(count: int) -> Any:
    """Eight numbers, and one of four classes."""
    return torch.utils.data.TensorDataset(torch.randn(count, 8), torch.randint(0, 4, (count,)))


def traced(
    function: Function,
    *args: Any,
    world: int = 1,
    devices: int | None = None,
    steps: int = 5,
    precision: str | None = None,
    changes: tuple[str, ...] = (),
    **kwargs: Any,
) -> TraceResult:
    """Trace `function(*args, **kwargs)`."""
    request = train.function_request(function, args, kwargs)
    return trace(request, Options(precision=precision), TracingOptions(world, devices, steps, changes))


def trained(
    function: Function, *args: Any, devices: int | None = None, precision: str | None = None, **kwargs: Any
) -> list[hlo.Graph]:
    """Train it on XLA:CPU; the graphs that were compiled, in their order."""
    folder = Path("dumped").absolute()  # the working directory is the test's own
    options = Options(precision=precision, hoist="off", timeout=PATIENCE, spmd=devices, plain=True)
    with pytest.MonkeyPatch.context() as patch:
        dump = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=none"
        patch.setenv("XLA_FLAGS", f"{dump} {QUICK}")  # what is read is dumped before LLVM has any say
        train.start(train.function_request(function, args, kwargs), options)
    found = {int(path.name[7:11]): path for path in folder.glob("module_*.before_optimizations.txt")}
    assert all(re.match(r"module_\d{4}\.", path.name) for path in found.values())
    return [hlo.parse(found[number].read_text()) for number in sorted(found)]


def compiled(graphs: list[hlo.Graph]) -> list[Compiled]:
    return [(hlo.fingerprint(one), tuple(sorted(one.donated))) for one in graphs]


def taken(found: TraceResult) -> list[Compiled]:
    return [(one.hash, one.donors) for one in found.graphs]


def steady(found: TraceResult) -> LoweredGraph:
    """The one graph that later steps run, which is the last."""
    [last] = [one for one in found.graphs if one.steady]
    assert found.settled and last is found.graphs[-1]
    return last


def same(function: Function, *args: Any, reads: int = 0, tpu: bool = False, **kwargs: Any) -> TraceResult:
    """Trace and train it. The graphs must be the same, the same parameters donated; but for the graphs of `reads`,
    which a training compiles besides. `tpu`: libraries have other graphs on a TPU: they are compared where the training
    takes that branch, too."""
    found = traced(function, *args, **kwargs)
    kwargs.pop("steps", None)
    real = compiled(trained(function, *args, **kwargs))
    if tpu and not session.current.tpu_branch:
        return found
    missing = set(taken(found)) - set(real)
    assert not missing, f"graphs (with what they donate) that training does not compile: {missing}; it compiles {real}"
    assert len(set(real) - set(taken(found))) == reads
    return found
