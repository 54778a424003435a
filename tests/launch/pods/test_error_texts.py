"""Errors of runs on hosts, from records and without a cluster."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import Any

import pytest

from tests.launch.launching import said
from tpu_magics.backends.torch_xla import TorchXla
from tpu_magics.launch.errors.diagnosis import diagnose
from tpu_magics.launch.errors.failure import Failure, WorkerOutcome
from tpu_magics.launch.pods.payload import Payload, explain_pickling_error, loaded_names
from tpu_magics.launch.work import FunctionWork
from tpu_magics.runs.events import End

HOSTS = MappingProxyType({rank: f"w{rank // 2}" for rank in range(6)})


def stopped(rank: int) -> WorkerOutcome:
    return WorkerOutcome(rank, stopped_by_us=True)


def raised(rank: int, kind: str, text: str) -> WorkerOutcome:
    end = End(1.0, rank, status="failed", seconds=1.0, steps=3, error_type=kind, error_text=text)
    return WorkerOutcome(rank, exit_code=1, end=end)


def of(*outcomes: WorkerOutcome, **more: Any) -> Any:
    return diagnose(Failure(more.pop("reason", "host"), outcomes, hosts=HOSTS, **more))


LOST = (("w1", (2, 3), "its node died"),)


def test_a_lost_host_is_named_with_its_ranks() -> None:
    error = of(*map(stopped, range(6)), lost=LOST)
    assert error.what == "Host w1 (ranks 2 and 3) was lost during the run." and error.rank == 2
    assert "its node died" in error.why and "ray status" in error.todo and "%tpu_init --hosts" in error.todo


def test_a_lost_host_with_one_rank_is_named_once() -> None:
    error = of(*map(stopped, range(6)), lost=(("w1", (2,), "its node died"),))
    assert error.what == "Host w1 (rank 2) was lost during the run." and error.rank == 2


def test_collectives_that_broke_with_it_are_a_consequence() -> None:
    error = of(raised(0, "CollectiveBroken", "in all_reduce: Connection closed by peer"), stopped(1), lost=LOST)
    assert "Host w1 (ranks 2 and 3) was lost" in error.what


def test_a_worker_that_failed_before_is_the_cause() -> None:
    error = of(raised(4, "ValueError", "no such column"), stopped(1), lost=LOST)
    assert error.what.startswith("Rank 4 on host w2 raised ValueError") and error.rank == 4


def test_a_host_that_could_not_begin() -> None:
    told = ("w0", "", "ModuleNotFoundError: No module named 'sentencepiece'", "")
    error = of(stopped(0), refused=(told, told))
    assert error.what.startswith("Host w0 could not start") and "The same on 1 more." in error.why
    assert error.todo.startswith("Install sentencepiece on every host")
    error = of(stopped(0), refused=(("w0", "The TPU is taken.", "By process 7.", "End it."),))
    assert said(error).splitlines()[0] == "Host w0: The TPU is taken." and error.todo == "End it."


def test_on_one_host_no_host_is_named() -> None:
    error = diagnose(Failure("worker", (raised(3, "ValueError", "x"),)))
    assert error.what.startswith("Rank 3 raised ValueError")


# -- what cannot be pickled -------------------------------------------------------------------------------------------

lock = threading.Lock()


def reads_a_global() -> Any:
    return lock


def calls_a_helper() -> Any:
    return reads_a_global()


class Holder:
    def __init__(self) -> None:
        self.inner = {"open": threading.Lock()}


def local_function(value: Any) -> Any:
    def training_function() -> Any:
        return value

    return training_function


def by_value(function: Any) -> Any:
    """As if it were defined in a notebook."""
    function.__module__ = "__main__"
    return function


@pytest.mark.parametrize(
    ("function", "args", "name", "via"),
    [
        (local_function(threading.Lock()), (), "value", "`training_function`"),
        (local_function(Holder()), (), "open", "`training_function` -> `value` -> `inner`"),
        (len, ([1, threading.Lock()],), "[1]", "`obj`"),
        (by_value(calls_a_helper), (), "lock", "`calls_a_helper` -> `reads_a_global`"),
    ],
)
def test_what_cannot_be_pickled_is_named(function: Any, args: tuple[Any, ...], name: str, via: str) -> None:
    by_value(reads_a_global)
    error = explain_pickling_error(Payload(TorchXla(), FunctionWork(function, args), {}), {}, TypeError("x"))
    assert error.what == f"`{name}` cannot be sent to the hosts." and via in error.why, error
    assert "_thread.lock" in error.why and f"Create `{name}` inside the training function" in error.todo


def test_loaded_names_are_not_attributes() -> None:
    code = compile("a = b.c\ndef f():\n    return d.e + len(g)\ndel h", "<cell>", "exec")
    assert set(loaded_names(code)) == {"b", "d", "len", "g", "h"}
