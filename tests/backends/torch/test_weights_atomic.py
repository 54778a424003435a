"""All weights are loaded, or the models are byte for byte as before: failures and interrupts in the middle."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tpu_magics.backends.torch import weights_files, weights_load
from tpu_magics.backends.torch.weights import check_weights, load_weights
from tpu_magics.backends.torch.weights_load import Exchange
from tpu_magics.errors import TpuMagicsError

from .weights_samples import arrived, bring_home, content, describe, holding


def mixed(scale: float) -> nn.Module:
    """One of every way in which a model is changed."""
    model = holding(
        plain=nn.Parameter(torch.full((300,), scale)),
        last=torch.full((3, 2, 2, 2), scale).to(memory_format=torch.channels_last),
        other=torch.full((5,), scale, dtype=torch.bfloat16 if scale == 1 else torch.float32),
        sparse=(torch.eye(3) * scale).to_sparse(),
        lazy=torch.nn.UninitializedParameter() if scale == 1 else nn.Parameter(torch.ones(2)),
        meta=nn.Parameter(torch.empty(2, device="meta" if scale == 1 else "cpu")),
        none=None if scale == 1 else torch.ones(2),
        end=torch.full((300,), scale),
    )
    model.other.grad = None
    return model


class Injected(Exception):
    pass


def breaking(method: Any, failing: int, calls: list[Any]) -> Any:
    """A way to change a model that fails after the change number `failing`, counted over all ways."""

    def prepare(*args: Any) -> Any:
        change, back = method(*args)

        def changed_then_failed() -> None:
            calls.append(args)
            change()
            if len(calls) == failing + 1:
                raise Injected("the disk was pulled out")

        return changed_then_failed, back

    return prepare


@pytest.mark.parametrize("failing", range(8))
@pytest.mark.parametrize("free_bytes", [0, 2**40])
def test_a_failure_half_way_puts_everything_back(
    failing: int, free_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, worker = mixed(1.0), mixed(2.0)
    before = content(home)
    staged = arrived(home, worker, tmp_path)
    assert len(staged.puts) == 8
    files = sorted(tmp_path.iterdir())
    calls: list[Any] = []
    for name, method in list(weights_load._METHODS.items()):
        monkeypatch.setitem(weights_load._METHODS, name, breaking(method, failing, calls))
    monkeypatch.setattr(Exchange, "prepare", breaking(Exchange.prepare, failing, calls))
    with pytest.raises(TpuMagicsError, match="The models were not changed") as caught:
        load_weights(staged, free_bytes)
    assert "Injected: the disk was pulled out" in caught.value.why
    assert str(tmp_path) in caught.value.todo
    assert content(home) == before
    assert type(home.lazy) is torch.nn.UninitializedParameter
    assert sorted(tmp_path.iterdir()) == files
    monkeypatch.undo()
    load_weights(check_weights({"model": home}, tmp_path), free_bytes)  # the file has the trained weights again
    assert home.end.tolist() == worker.end.tolist()
    assert torch.equal(home.last, worker.last)


def flaky(real: Any, failing: int, calls: list[int], written: int = 0) -> Any:
    """os.pread or os.pwrite whose call number `failing` fails, after it wrote the first `written` bytes."""

    def call(file: int, what: Any, offset: int) -> Any:
        calls.append(offset)
        if len(calls) != failing + 1:
            return real(file, what, offset)
        if written:
            real(file, what[:written], offset)
        raise OSError(28, "No space left on device")

    return call


@pytest.mark.parametrize("function", ["pread", "pwrite"])
@pytest.mark.parametrize("failing", range(7))
def test_a_disk_that_fails_once_at_any_block(
    function: str, failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_load, "_BLOCK", 1000)
    home, worker = nn.Linear(25, 30), nn.Linear(25, 30)
    before = content(home)
    staged = arrived(home, worker, tmp_path)
    calls: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, function, flaky(getattr(os, function), failing, calls, 500 if function == "pwrite" else 0))
        try:
            load_weights(staged)
            failed = False
        except TpuMagicsError as error:
            failed = True
            assert "No space left on device" in error.why
            assert "load_state_dict" in error.todo
    assert failed == (failing < len(calls))
    assert failed or len(calls) >= 4
    if failed:
        assert content(home) == before
        load_weights(check_weights({"model": home}, tmp_path))
    assert torch.equal(home.weight, worker.weight)
    assert torch.equal(home.bias, worker.bias)
    assert not (tmp_path / weights_files.PLAIN).exists()


def test_a_disk_that_takes_nothing_any_more_costs_the_file_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_load, "_BLOCK", 1000)
    home = nn.Linear(25, 30)
    before = content(home)
    staged = arrived(home, nn.Linear(25, 30), tmp_path)
    real, calls = os.pwrite, []

    def full(file: int, what: Any, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 2:
            raise OSError(5, "Input/output error")
        return real(file, what, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TpuMagicsError, match="The models were not changed") as caught:
        load_weights(staged)
    assert "They are lost. Train again." in caught.value.todo
    assert content(home) == before
    assert [path.name for path in tmp_path.iterdir()] == [weights_files.MANIFEST]


def test_what_cannot_be_put_back_is_not_called_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_load, "_BLOCK", 1000)
    home = nn.Sequential(nn.Linear(25, 30), nn.Linear(25, 30))
    first = describe(home[0].weight)
    staged = arrived(home, nn.Sequential(nn.Linear(25, 30), nn.Linear(25, 30)), tmp_path)
    real, calls = os.pread, []

    def dying(file: int, count: int, offset: int) -> bytes:
        calls.append(offset)
        if 9 <= len(calls) <= 10:  # in the second layer, and again when that is undone
            raise OSError(5, "Input/output error")
        return real(file, count, offset)

    monkeypatch.setattr(os, "pread", dying)
    with pytest.raises(TpuMagicsError, match="not all old weights could be restored") as caught:
        load_weights(staged)
    assert "Input/output error; then `1.weight` could not be restored" in str(caught.value)
    assert "run the cells that create them" in caught.value.todo
    assert "They are lost. Train again." in caught.value.todo
    assert not (tmp_path / weights_files.PLAIN).exists()
    assert describe(home[0].weight) == first


def test_short_reads_and_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, worker = nn.Linear(25, 30), nn.Linear(25, 30)
    staged = arrived(home, worker, tmp_path)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, what, offset: real(file, what[:70], offset))
    load_weights(staged)
    assert torch.equal(home.weight, worker.weight)


def test_an_interrupt_in_the_middle_of_one_tensor_puts_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, worker = nn.Linear(50, 50).double(), nn.Linear(50, 50)  # another form in the file: copied, not exchanged
    before = content(home)
    staged = arrived(home, worker, tmp_path)
    real = torch.Tensor.copy_

    def half(self: torch.Tensor, source: torch.Tensor, *args: Any) -> torch.Tensor:
        if self is home.bias and source is staged.puts[1].value:
            real(self[:25], source[:25])
            raise KeyboardInterrupt
        return real(self, source, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", half)
    with pytest.raises(KeyboardInterrupt):
        load_weights(staged)
    assert content(home) == before


def test_no_room_for_the_old_values_is_said_before_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = nn.Linear(50, 50).double()
    before = content(home)
    staged = arrived(home, nn.Linear(50, 50), tmp_path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_load.os, "posix_fallocate", full)
    with pytest.raises(TpuMagicsError) as caught:
        load_weights(staged, free_bytes=1000)
    assert "0.0 MB of memory are free, and the disk has no space either" in caught.value.why
    assert content(home) == before


def test_frozen_tensors_are_not_written(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    worker = copy.deepcopy(home)
    with torch.no_grad():
        worker[1].weight.add_(1)
    versions = [parameter._version for parameter in home.parameters()]
    threads = torch.get_num_threads()
    bring_home(home, worker, tmp_path)
    assert torch.get_num_threads() == threads
    assert [parameter._version - old for parameter, old in zip(home.parameters(), versions)] == [0, 0, 1, 0]


@pytest.mark.parametrize("other_thread", [False, True])
def test_an_interrupt_waits_until_all_is_loaded(
    other_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, worker = (
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))),
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))),
    )
    staged = arrived(home, worker, tmp_path)
    real = Exchange.prepare
    done = threading.Event()
    if other_thread:  # one that does not block SIGINT, as those of a Jupyter kernel do not
        threading.Thread(target=done.wait, daemon=True).start()

    def interrupted(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return real(*args)

    monkeypatch.setattr(Exchange, "prepare", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        load_weights(staged)
    done.set()
    assert all(torch.equal(here, there) for here, there in zip(home.parameters(), worker.parameters(), strict=True))
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
