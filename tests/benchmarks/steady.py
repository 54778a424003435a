"""The graph that later steps of a function run, traced and compiled for a TPU that is not here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from tpu_magics.launch import session
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import function_request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.compilation import compile_graphs
from tpu_magics.preflight.compile_cache import Store
from tpu_magics.preflight.compile_process import torch_xla_flags
from tpu_magics.preflight.compile_result import TraceResult
from tpu_magics.preflight.pipeline import trace_request
from tpu_magics.preflight.report import TargetResult
from tpu_magics.preflight.targets import parse


def traced(function: Callable[..., None], *args: Any, target: str) -> TraceResult:
    """As one rank of that TPU. Raises TpuMagicsError where it cannot be traced."""
    session.current.backend.prepare()
    asked = TracingOptions(world=parse(target).ranks)
    return trace_request(function_request(function, args), Options(force=True), asked).later


def compiled(found: TraceResult, target: str, store: Store | None = None) -> TargetResult:
    """What the compiler says of its graphs. `store`: what was compiled before."""
    chosen = parse(target)
    flags = torch_xla_flags(chosen)
    results = compile_graphs(found.graphs, chosen, store=store, on_progress=lambda _now: None, flags=flags)
    return TargetResult(chosen, found, tuple(results))


def is_installed(package: str) -> bool:
    """Whether a function that needs that package can be traced here. "": it needs none."""
    return not package or importlib.util.find_spec(package) is not None
