"""What is refused before anything forks, with the cell that did it; and what is let through."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla
import torch_xla.runtime as xr

from tests.host import fake_hosts
from tests.launch.launching import digest, in_forked_notebook, refused, run, said
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import inspect_host
from tpu_magics.launch import process, session
from tpu_magics.launch.request import check_function
from tpu_magics.launch.runtime_start import find_start
from tpu_magics.launch.strategies.forked import ForkedStrategy
from tpu_magics.magics import doctor, runs_commands

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def nothing() -> None:
    pass


def forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise AssertionError("something was forked")

    monkeypatch.setattr(os, "fork", fork)


# -- the state of the notebook ----------------------------------------------------------------------------------------


def marked(cell: str) -> None:
    """What the extension does after every cell."""
    session.current.fork_blockers.record(session.current.backend, cell)


@pytest.mark.parametrize(
    ("source", "by"),
    [
        ("def f():\n    torch_xla.device()\n\nx = torch_xla.device()", "In [3], line 4: `x = torch_xla.device()`"),
        ("y = fitter.inputs.to('xla:0')", "In [3], line 1: `y = fitter.inputs.to('xla:0')`"),
        ("y = predict()", "In [3], through `fitter.device`, which is on the device"),
        ("y = len(config)", "In [3], through `config['device']`, which is on the device"),
        ("y = 1", "In [3]"),
        ("not Python", "In [3]"),
    ],
)
def test_what_a_cell_did_is_named_as_far_as_it_shows(source: str, by: str) -> None:
    fitter = types.SimpleNamespace(device=torch.device("xla"), inputs=torch.ones(1))
    names: dict[str, Any] = {"torch_xla": torch_xla, "fitter": fitter, "config": {"device": "xla:0", "kind": "cpu"}}
    exec("def predict():\n    return fitter.inputs.to(fitter.device)", names)
    assert str(find_start("In [3]", source, names, session.current.backend)) == by


def as_on_a_tpu() -> None:
    """The notebook's runtime holds the chip, so that new processes cannot use it either."""
    ForkedStrategy.can_spawn = False


def cells_that_use_the_device() -> None:
    as_on_a_tpu()
    marked("In [6]")
    torch.ones(2, device=torch_xla.device())
    marked("In [7]")
    marked("In [8]")
    print(said(refused(nothing)))


def cells_that_use_the_device_before_us() -> None:
    as_on_a_tpu()
    xr.world_size()
    print(said(refused(nothing)))


def cells_that_build_an_accelerator() -> None:
    marked("In [2]")
    from accelerate import Accelerator

    Accelerator()
    marked("In [3]")
    print(said(refused(nothing)))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (cells_that_use_the_device, ["runtime is already initialized", "by In [7].", "Restart the kernel"]),
        (cells_that_use_the_device_before_us, ["already initialized", "by code that ran before tpu_magics was loaded"]),
        (cells_that_build_an_accelerator, ["An Accelerator was created", "by In [3].", "inside the training function"]),
    ],
)
def test_a_notebook_that_used_the_device_is_told_where(
    tmp_path: Path, cells: Callable[[], None], words: Sequence[str]
) -> None:
    text = in_forked_notebook(cells, tmp_path / "out")
    assert all(word in text for word in words), text
    assert "What to do: " in text


def test_cuda_in_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    forks_nothing(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # as torch says it on a machine with a GPU
    marked("In [4]")
    assert "CUDA was initialized in this notebook, by In [4]." in refused(nothing).what


# -- the TPU is taken -------------------------------------------------------------------------------------------------


def test_a_tpu_that_another_process_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A real process that has the device file open, on a host that is recorded."""
    host = fake_hosts.tpu_vm_v4(tmp_path)
    program = "import sys, time; held = open(sys.argv[1]); print('open', flush=True); time.sleep(1000)"
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(host.root / "dev/accel2")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        listed = host.root / "proc" / str(holder.pid)
        listed.mkdir(parents=True)
        for name in ("fd", "cmdline", "comm"):
            (listed / name).symlink_to(f"/proc/{holder.pid}/{name}")
        (listed / "stat").write_text(f"{holder.pid} (python) S 1 1 1 0 -1")  # not a child of this notebook
        fake_inspection(monkeypatch, host)
        forks_nothing(monkeypatch)
        error = refused(nothing)
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()
    text = said(error)
    assert str(holder.pid) in text and "accel2" in text and "kill" in text, text


def fake_inspection(monkeypatch: pytest.MonkeyPatch, host: fake_hosts.FakeHost) -> None:
    monkeypatch.setattr(session, "inspect_host", lambda: inspect_host(**host.arguments()))  # type: ignore[arg-type]


# -- models -----------------------------------------------------------------------------------------------------------


def takes(*args: Any, **kwargs: Any) -> None:
    pass


def test_a_model_on_a_device_already(monkeypatch: pytest.MonkeyPatch) -> None:
    forks_nothing(monkeypatch)
    monkeypatch.setattr(session.current.backend.models, "model_device", lambda _model: "xla")
    error = refused(takes, torch.nn.Linear(2, 2))
    assert "is already on the device 'xla'" in error.what
    assert "move it inside the training function" in error.todo


def materialises(model: Any) -> list[str]:
    return [str(parameter.device) for parameter in model.parameters()]


def test_a_model_on_meta_may_be_read() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    assert run(materialises, [model][0]).value == ["meta", "meta"]


# -- optimisers -------------------------------------------------------------------------------------------------------


def prepares(model: Any, optimizer: Any) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, optimizer = accelerator.prepare(model, optimizer)
    inputs = torch.ones(4, 2, device=accelerator.device)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
    return float(loss.item())


def test_an_optimizer_that_accelerate_prepares_trains() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, start = digest(model), model(torch.ones(4, 2)).pow(2).mean().item()
    result = run(prepares, model, optimizer)
    assert digest(model) != before and result.value < start
    assert model(torch.ones(4, 2)).pow(2).mean().item() < result.value  # what came home is what was trained


# -- the function -----------------------------------------------------------------------------------------------------


def generates() -> Any:
    yield 1


async def waits() -> None:
    pass


async def generates_asynchronously() -> Any:
    yield 1


def two(model: Any, rate: float, *, epochs: int = 1) -> None:
    pass


def test_functions_that_cannot_be_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    forks_nothing(monkeypatch)
    for function, word in (
        (generates, "`generates` is a generator function"),
        (waits, "`waits` is an async function"),
        (generates_asynchronously, "is an async function"),
        (functools.wraps(generates)(lambda: generates()), "is a generator function"),
        (functools.partial(generates), "is a generator function"),
        (torch.nn.Linear(2, 2).weight, "is not a function"),
        (3, "is not a function"),
        ("text", "is not a function"),
    ):
        error = refused(function)  # type: ignore[arg-type]
        assert word in error.what and error.todo, error


def test_arguments_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    forks_nothing(monkeypatch)
    for args, kwargs, word in (
        ((), {}, "missing a required argument: 'model'"),
        ((1,), {}, "missing a required argument: 'rate'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1, 2), {"epoch": 3}, "unexpected keyword argument 'epoch'"),
        ((1,), {"model": 2}, "multiple values for argument 'model'"),
    ):
        error = refused(two, *args, kwargs=kwargs)
        assert "two(model: 'Any', rate: 'float', *, epochs: 'int' = 1) -> 'None' does not accept" in error.what
        assert word in error.what and "%%tpu_train model rate" in error.todo
    with pytest.raises(TpuMagicsError, match="does not accept"):
        check_function(lambda: None, (), {}, index_first=True)
    assert check_function(two, (1, 2), {}, False) == {"model": 1, "rate": 2, "epochs": 1}
    assert check_function(max, (1, 2), {}, False)  # a builtin has no signature that could be read


class Callable_:
    """An object that can be called."""

    def __call__(self, model: Any) -> int:
        return 5


def test_other_things_that_can_be_called() -> None:
    assert run(Callable_(), 1).value == 5
    assert run(functools.partial(max, 3), 4).value == 4
    assert run(len, [1, 2]).value == 2


# -- a second run -----------------------------------------------------------------------------------------------------


def test_a_run_inside_a_run_is_told() -> None:
    """The function starts training itself; it is in a worker, in a thread."""

    def trains_again() -> str:
        try:
            run(nothing)
        except TpuMagicsError as error:
            return error.what
        return "it ran"

    assert run(trains_again).value == "Training was started inside a worker."


@pytest.mark.parametrize(
    ("magic", "use"),
    [
        ("%tpu_init", session.initialise),
        ("%tpu_stop", functools.partial(runs_commands.stop, None)),
        ("%tpu_doctor --fix", functools.partial(doctor.doctor, fix=True)),
    ],
)
@pytest.mark.parametrize("background", [False, True])
def test_magics_of_the_notebook_are_refused_inside_a_run(magic: str, use: Callable[[], Any], background: bool) -> None:
    def uses_it() -> str:
        with pytest.raises(TpuMagicsError) as caught:
            use()
        return caught.value.what

    assert run(uses_it, background=background).wait().value == f"{magic} was used inside a worker."


def test_the_stop_signal_is_left_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    refused(generates)
    run(nothing)
    assert signal.getsignal(signal.SIGINT) is before
    process.require_main_thread()
