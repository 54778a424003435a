"""Runs on hosts that fail: their errors, and that the next cell trains. On a real cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.launch.launching import failed, interrupt_when, place_of, refused, run, said
from tests.launch.pods import clusters, trained
from tests.launch.pods.clusters import Nodes
from tests.launch.pods.test_training import weights
from tests.launch.pods.trained import net
from tpu_magics.errors import TrainingFailed, TrainingInterrupted
from tpu_magics.launch import session, train
from tpu_magics.launch.options import Options
from tpu_magics.launch.pods.host_start import CLOSED

pytestmark = pytest.mark.process


def raises_on(rank: int, model: Any) -> None:
    import torch_xla.runtime as xr

    trained.steps(model, 2)
    if xr.global_ordinal() == rank:
        raise ValueError("the data of this rank is broken")
    trained.steps(model, 2)


def test_an_exception_names_host_rank_and_line_and_the_models_stay(pod: session.Session) -> None:
    model = net()
    error = failed(raises_on, 3, model, timeout=300.0)
    assert "rank 3 on host beta" in error.what.lower() and "the data of this rank is broken" in said(error)
    assert "test_failing.py" in said(error) and weights(model) == weights(net())
    assert error.rank == 3


def dies_on(rank: int, number: int) -> None:
    import torch_xla.runtime as xr

    trained.steps(net(), 2)
    if xr.global_ordinal() == rank:
        os.kill(os.getpid(), number)
        time.sleep(30)
    trained.steps(net(), 100)


@pytest.mark.long
@pytest.mark.parametrize(("rank", "number"), [(2, signal.SIGKILL), (1, signal.SIGSEGV)])
def test_a_signal_names_host_and_rank(pod: session.Session, rank: int, number: signal.Signals) -> None:
    error = failed(dies_on, rank, number, timeout=300.0)
    assert f"Rank {rank} on host {('alpha', 'beta')[rank // 2]}" in error.what and number.name in error.what


def waits(folder: str) -> None:
    import torch_xla.runtime as xr

    with open(f"{folder}/rank-{xr.global_ordinal()}", "w"):
        pass
    time.sleep(300)  # sleeps


@pytest.mark.long
def test_an_interrupt_ends_the_run_everywhere(pod: session.Session, tmp_path: Any) -> None:
    with interrupt_when(lambda: len(list(tmp_path.glob("rank-*"))) == 4), pytest.raises(TrainingInterrupted) as caught:
        run(waits, str(tmp_path), timeout=300.0)
    assert "interrupted" in said(caught.value) and place_of("sleeps", __file__) in said(caught.value)
    assert session.current.last is not None and session.current.last.status == "interrupted"
    assert not clusters.wait_gone()


@pytest.mark.long
def test_an_interrupt_before_the_workers_are_there_leaves_nothing(pod: session.Session) -> None:
    started = time.monotonic()
    with interrupt_when(lambda: time.monotonic() - started > 0.5), pytest.raises(KeyboardInterrupt):
        run(trained.the_world, timeout=300.0)
    assert not clusters.wait_gone() and session.current.active_run is None


@pytest.mark.long
def test_a_timeout_says_who_was_where(pod: session.Session, tmp_path: Any) -> None:
    error = failed(waits, str(tmp_path), timeout=40.0)
    assert "40 s (--timeout)" in error.what and place_of("sleeps", __file__) in said(error)


def background(function: Any, *args: Any) -> Any:
    return train.start(train.function_request(function, args), Options(hoist="off", background=True, timeout=300.0))


@pytest.mark.long
def test_a_background_run_updates_the_model_and_another_is_stopped(pod: session.Session, tmp_path: Any) -> None:
    model = net()
    result = background(trained.steps, model)
    assert result.status == "running" and weights(model) == weights(net())
    result.wait()
    assert result.status == "done" and weights(model) != weights(net()) and len(result.values) == 4

    stopped = background(waits, str(tmp_path))
    while len(list(tmp_path.glob("rank-*"))) < 4:
        time.sleep(0.05)
    assert session.current.active_run is not None
    session.current.active_run.stop()
    assert not clusters.wait_gone()
    with pytest.raises(TrainingInterrupted):
        stopped.wait()


@pytest.mark.long
def test_a_connection_that_is_closed_meanwhile_ends_the_run_and_not_this_process(
    nodes: Nodes, pod: session.Session, tmp_path: Any
) -> None:
    """Ray ends a process that calls it from a thread after ray.shutdown() has begun."""
    import ray

    running = background(waits, str(tmp_path))
    while len(list(tmp_path.glob("rank-*"))) < 4:
        time.sleep(0.05)
    ray.shutdown()
    try:
        with pytest.raises(TrainingFailed) as error:
            running.wait()
        assert CLOSED in said(error.value)
        assert not clusters.wait_gone()
    finally:
        nodes.connect()
    assert len(run(trained.the_world, timeout=300.0).values) == 4


def test_what_cannot_be_pickled_is_named_before_anything_is_sent(pod: session.Session) -> None:
    lock = threading.Lock()

    def helper() -> None:
        lock.acquire()

    def training_function(_model: Any) -> None:
        helper()

    error = refused(training_function, net())
    assert "`lock` cannot be sent" in error.what and "`helper`" in error.why and "_thread.lock" in error.why
    error = refused(trained.steps, {"count": threading.Lock()})
    assert "`count` cannot be sent" in error.what and "`model`" in error.why


@pytest.mark.long
def test_a_module_that_the_hosts_lack_is_named(pod: session.Session) -> None:
    error = failed(trained.Absent(), timeout=60.0)
    assert "alpha" in error.what and "not_on_the_hosts" in said(error) and "every host" in error.todo
