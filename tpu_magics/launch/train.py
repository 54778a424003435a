"""`tpu_magics.train()` and `start()`: every run begins here, whichever framework and hosts it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tpu_magics.launch import (
    plan,
    process,
    results,
    rule_check,
    session,
)
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import Request, function_request
from tpu_magics.launch.run import Strategy, prepare
from tpu_magics.launch.strategies.forked import ForkedStrategy
from tpu_magics.launch.strategies.in_process import InProcessStrategy
from tpu_magics.runs.folder import check_name


def train(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    processes: int | None = None,
    precision: str | None = None,
    hoist: str = "auto",
    background: bool = False,
    steps: int | None = None,
    timeout: float | None = None,
    force: bool = False,
    run_name: str | None = None,
    plain: bool = False,
    max_recompiles: int | None = None,
    spmd: int | bool | None = None,
    collective_timeout: float | None = None,
    strict: bool = False,
    gate: Callable[[Request, Options], None] | None = None,
    jit: str = "auto",
    keep_partial: bool = False,
) -> results.TrainResult:
    """Train `function(*args, **kwargs)` on every rank, as `%%tpu_train` does.

    Args:
        function: the training function; models among its arguments and globals are updated in the notebook.
        args: its arguments, evaluated in the notebook and inherited by the workers.
        kwargs: its keyword arguments.
        processes: number of ranks (default: one for each TPU device; one on XLA:CPU, where more are a rehearsal).
        precision: "fp32", "bf16" or "bf16-downcast" (default: the session's).
        hoist: "auto" builds models of the function once, in the notebook; "off" does not.
        background: return at once; `.wait()` loads the results.
        steps: stop after this number of steps; the notebook's models stay unchanged.
        timeout: stop after this number of seconds.
        force: run even if the estimate says that memory or disk is not enough.
        run_name: name of the run folder (default: the function's).
        plain: show a summary without times, ids and sizes.
        max_recompiles: stop the run at the first recompile above this number and show the table of causes.
        spmd: one worker that drives this number of devices as a mesh (True: all, or the session's number; False: no
            SPMD, whatever the session has).
        collective_timeout: seconds that a rank of a rehearsal waits for the others in a collective (default: 60).
        strict: do not start if the code breaks a rule (see `%tpu_check`), and fail if no step ran on the XLA device.
        gate: called before anything forks; an exception stops the run.
        jit: for TensorFlow: "auto" compiles with XLA without a TPU, and leaves compiling to the strategy on a TPU;
            "keep" does not change the models' jit_compile.
        keep_partial: after a failure, an interrupt or the time limit, keep the weights and state of rank 0's last step.

    A TensorFlow function trains in this process, inside `strategy.scope()`.

    Raises:
        TpuMagicsError: the run cannot start.
        TrainingFailed: a worker failed; the notebook's models are unchanged.
    """
    __tracebackhide__ = True
    options = Options(processes, precision, hoist, background, steps, timeout, force, run_name, plain, max_recompiles)
    options = replace(options, spmd=plan.spmd_option(spmd), collective_timeout=collective_timeout)
    options = replace(options, strict=strict, gate=gate, jit=jit, keep_partial=keep_partial)
    return start(function_request(function, args, kwargs), options)


def start(request: Request, options: Options, workers: int | None = None) -> results.TrainResult:
    """Run a request. `workers` overrides the number of forked processes without a check.

    Raises:
        TpuMagicsError: the run cannot start.
        TrainingFailed: the run failed; the models are unchanged.
        Exception: what the user code raised in this process; the models are restored.
    """
    __tracebackhide__ = True
    options.check()
    if options.run_name is not None:
        check_name(options.run_name)
    session.current.refuse_second()
    process.require_main_thread()
    strategy = choose_strategy(request, workers)
    strategy.check_options(request, options)
    findings = rule_check.check_code(request.hoistable, request.script, options.strict)
    if options.gate is not None and not strategy.in_process:
        options.gate(request, replace(options, gate=None))
    run = prepare(request, options, strategy)
    session.current.last = run.result
    rule_check.record_findings(run.folder, findings)
    run.execute()
    return run.result


def choose_strategy(request: Request, workers: int | None = None) -> Strategy:
    """In this process if the framework does not work after a fork, on the session's hosts, or in forks on this host."""
    current = session.current
    if current.is_local(request.items, request.packages, bool(request.launcher)):
        return InProcessStrategy()
    if current.pod is None:
        return ForkedStrategy(workers)
    from tpu_magics.launch.strategies.ray import RayStrategy

    return RayStrategy(current.pod)
