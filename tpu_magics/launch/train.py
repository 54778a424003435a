"""`tpu_magics.train()` and `start()`: every run begins here, whichever framework and hosts it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import (
    forked_run,
    in_process_run,
    plan,
    preconditions,
    process,
    results,
    rule_check,
    session,
)
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import Request, function_request
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
    """Run a request: in forked workers, on several hosts, or in this process if its framework does not work after a
    fork. `workers` overrides the number of processes without a check."""
    __tracebackhide__ = True
    options.check()
    if options.run_name is not None:
        check_name(options.run_name)
    session.current.refuse_second()
    process.require_main_thread()
    if session.current.is_local(request.items, request.packages, bool(request.launcher)):
        _refuse_hosts()
        return in_process_run.start(request, options)
    preconditions.refuse_local_options(options)
    found = rule_check.check_code(request.hoistable, request.script, options.strict)
    if options.gate is not None:
        options.gate(request, replace(options, gate=None))
    run = forked_run.prepare(request, options, workers) if session.current.pod is None else _on_pod(request, options)
    session.current.active_run = run
    session.current.last = run.result
    rule_check.record_findings(run.folder, found)
    try:
        run.open_panel()
        run.fork()
        if not options.background:
            run.watch_until_end()
            run.finish()
        else:
            run.watch_in_thread()
    except BaseException as error:
        run.abandon(error)
        raise
    return run.result


def _refuse_hosts() -> None:
    if session.current.pod is not None:
        raise TpuMagicsError(
            "TensorFlow cannot train on the hosts of a Ray cluster.",
            "Its strategy runs in the notebook's process and connects to the devices of other hosts itself.",
            "Train on this host with %tpu_init --hosts off, or name the TPU: %tpu_init --tpu NAME",
        )


def _on_pod(request: Request, options: Options) -> forked_run.ForkedRun:
    from tpu_magics.launch.pods import ray_run

    assert session.current.pod is not None
    return ray_run.prepare(session.current.pod, request, options)
