"""The launcher's known traps, one test for each: what happens in real notebooks, and that it is handled.

Each docstring names the trap. Number 5 (statements that give device tensors) is tested in test_cells.py; 9, 10 and 12
(loaders that outlive their rank, forks from other threads, what passes a fork) in test_process.py.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_magics
from tests import framework
from tests.launch.launching import (
    digest,
    failed,
    fake_notebook,
    in_forked_notebook,
    of,
    python,
    run,
    said,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session, streams, train
from tpu_magics.launch.options import Options
from tpu_magics.runs.files import runs_root

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def steps(model: Any, count: int = 3) -> float:
    """A plain training loop; on the device in a worker, on the CPU in the notebook."""
    device = framework.device() if os.environ.get("FORK_LAUNCHED") else torch.device("cpu")
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.arange(16 * 64.0).reshape(16, 64).to(device) / 1024
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        if device.type != "cpu":
            framework.sync()
    return float(loss.item())


# -- forking ----------------------------------------------------------------------------------------------------------


def works_on_the_cpu() -> dict[str, Any]:
    product = torch.randn(800, 800) @ torch.randn(800, 800)
    return {"finite": bool(product.isfinite().all()), "threads": torch.get_num_threads()}


def test_trap_01_a_backward_on_the_cpu_before() -> None:
    """Autograd starts its device threads at the first backward, for the devices known then; and GNU OpenMP's threads do
    not survive a fork. A whole training loop in the notebook, a matmul in it, then training."""
    model = net()
    steps(model)
    matmul = torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    assert matmul.shape == (1500, 1500)
    before = digest(model)
    result = run(steps, model, workers=2)
    assert len(result.values) == 2 and digest(model) != before
    worked = run(works_on_the_cpu).value
    assert worked["finite"] and worked["threads"] == torch.get_num_threads()  # with all cores


def cells_that_seed() -> None:
    import accelerate.utils
    import transformers

    session.initialise()
    accelerate.utils.set_seed(1234)
    arguments = transformers.TrainingArguments(output_dir="out", report_to=[], seed=7)
    assert arguments.device.type == "cpu"
    backend = session.current.backend
    assert not backend.runtime_initialized() and not backend.other_states()
    expected = numbers()
    accelerate.utils.set_seed(1234)
    result = run(seeds_inside, workers=2)
    assert result.values == [{"device": 1234, "numbers": expected}] * 2, (result.values, expected)
    behind = numbers()
    accelerate.utils.set_seed(1234)
    assert (numbers(), numbers()) == (expected, behind)  # the notebook goes on where the workers were
    assert not backend.runtime_initialized()
    accelerate.PartialState()
    with warnings.catch_warnings():  # which accelerate gives as its state is built again in a worker
        warnings.simplefilter("error")
        assert run(int).value == 0
    print("seeded")


def numbers() -> list[float]:
    import numpy

    return [random.random(), float(numpy.random.rand()), float(torch.rand(1))]


def seeds_inside() -> dict[str, Any]:
    return {"device": framework.seed(), "numbers": numbers()}


def test_trap_02_seeding_starts_no_runtime(tmp_path: Path) -> None:
    """accelerate's set_seed and transformers' TrainingArguments initialise the XLA runtime; after %tpu_init they do
    not, and the workers are seeded all the same. Values that come home start it as little."""
    assert "seeded" in in_forked_notebook(cells_that_seed, tmp_path / "out")
    assert run(lambda: torch.ones(2, device=framework.TYPE)).value.device.type == "cpu"
    assert not session.current.backend.runtime_initialized()


def builds_and_shuffles() -> dict[str, Any]:
    torch.manual_seed(42)
    random.seed(42)
    model = torch.nn.Linear(64, 8)
    loader = torch.utils.data.DataLoader(list(range(32)), batch_size=8, shuffle=True)
    order = [batch.tolist() for batch in loader]
    return {"order": order, "weight": model.weight.detach().clone(), "python": random.random()}


def test_trap_03_hoisting_keeps_the_random_stream() -> None:
    """The model is built in the notebook, and the shuffle behind it in the worker draws the same numbers."""
    request = train.function_request(builds_and_shuffles)
    values, behind = [], []
    for how in ("auto", "off"):
        values.append(train.start(request, Options(hoist=how, timeout=60.0)).value)
        behind.append((torch.get_rng_state(), random.getstate()))
    assert values[0]["order"] == values[1]["order"] and values[0]["python"] == values[1]["python"]
    assert torch.equal(values[0]["weight"], values[1]["weight"])
    (hoisted, hoisted_python), (built, built_python) = behind  # and the notebook goes on from the same place
    assert torch.equal(hoisted, built) and hoisted_python == built_python


def writes_in_place(model: Any, odd: Any) -> dict[str, Any]:
    with torch.no_grad():
        model[0].weight.fill_(9)
    maps = Path("/proc/self/maps").read_text()
    return {
        "shared": [parameter.is_shared() for parameter in model.parameters()],
        "files": [line for line in maps.splitlines() if "/dev/shm/torch" in line],
        "odd": [str(buffer.layout) for buffer in odd.buffers()],
    }


def test_trap_04_models_are_inherited_and_never_shared() -> None:
    """share_memory() dies on a small /dev/shm, refuses sparse and meta tensors, and lets a worker's in-place write
    reach the notebook."""
    model, odd = net(), torch.nn.Module()
    odd.register_buffer("sparse", torch.eye(3).to_sparse())
    before = digest(model)

    def writes_and_fails() -> None:
        writes_in_place(model, odd)
        raise ValueError

    failed(writes_and_fails)
    assert digest(model) == before
    found = run(writes_in_place, model, odd).value
    assert found == {"shared": [False] * 4, "files": [], "odd": ["torch.sparse_coo"]}
    assert float(model[0].weight[0, 0].item()) == 9.0  # by way of the run folder, after success only


class Tied(torch.nn.Module):
    """An embedding and an output layer that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8, bias=False)
        self.outer = torch.nn.Linear(8, 8, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Any) -> Any:
        return self.outer(self.inner(x).relu())


def trains_tied(model: Any, breaks: bool) -> list[bool]:
    model.to(framework.TYPE)
    tied = [model.inner.weight is model.outer.weight]
    if breaks:
        model.outer.weight = torch.nn.Parameter(model.outer.weight.detach().clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.eye(8, device=framework.TYPE)).pow(2).sum().backward()
        optimizer.step()
        framework.sync()
    return tied


def test_trap_06_tied_weights_stay_tied() -> None:
    """`.to("xla")` makes two weights of a tied one; they are tied again before the optimiser is made. Where the
    function itself unties them, they are two trained weights in the notebook too, as without a run."""
    model = Tied()
    before = digest(model)
    assert run(trains_tied, model, False).value == [True]
    assert model.inner.weight is model.outer.weight and digest(model) != before
    before = digest(model)
    assert run(trains_tied, model, True).value == [True]
    assert model.inner.weight is not model.outer.weight and digest(model) != before
    assert not torch.equal(model.inner.weight, model.outer.weight)
    assert len(list(model.parameters())) == 2


def steps_with_both(model: Any, optimizer: Any) -> bool:
    held = list(model.parameters())
    model.to(framework.TYPE)
    before = [one.detach().cpu() for one in held]
    model(torch.ones(4, 4, device=framework.TYPE)).pow(2).mean().backward()
    optimizer.step()
    return all(one is new for one, new in zip(held, model.parameters(), strict=True)) and not all(
        torch.equal(old, one.detach().cpu()) for old, one in zip(before, held, strict=True)
    )


def test_trap_07_an_optimizer_of_the_notebook() -> None:
    """`.to("xla")` replaces the parameters that it holds, so it would train nothing, silently: they stay the same
    objects in a worker."""
    model = torch.nn.Linear(4, 4)
    before = digest(model)
    assert run(steps_with_both, model, torch.optim.SGD(model.parameters(), lr=0.1)).value is True
    assert digest(model) != before


def test_trap_08_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle of loading weights waits until all of them are loaded. (Jupyter signals the whole
    process group: workers lead their own and ignore it, see test_process.py.)"""
    model, twin = net(), net()
    run(steps, twin)
    results = session.current.backend.results
    load = results.load_weights

    def interrupted(staged: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return load(staged)

    with monkeypatch.context() as patch:
        patch.setattr(results, "load_weights", interrupted)
        with pytest.raises(tpu_magics.TrainingInterrupted) as caught:
            run(steps, model)
    assert "they are in the notebook, all of them" in said(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    last = session.current.last
    assert last is not None and last.status == "done" and isinstance(last.value, float)
    assert run(steps, model).status == "done"


def test_trap_11_output_does_not_escape(capfd: pytest.CaptureFixture[str]) -> None:
    """Logging handlers hold the notebook's stream object, and text that was not flushed would appear twice."""
    handler = logging.StreamHandler(sys.stdout)
    logger = logging.getLogger("trap.eleven")
    logger.addHandler(handler)
    notebook = fake_notebook()

    def logs() -> None:
        logger.warning("through the old handler")
        os.system("echo from a program")

    sys.stdout.write("not flushed ")
    try:
        result = run(logs)
    finally:
        logger.removeHandler(handler)
    assert result.run.log(0) == notebook.printed == "through the old handler\nfrom a program\n"
    shown = capfd.readouterr()
    assert shown.out == "not flushed " and "handler" not in shown.err


def reduces(rank: int, folder: Path) -> None:
    """Three ranks in a real gloo group; one of them is killed while the others wait for it."""
    import torch.distributed as dist

    if dist.is_initialized():  # with TorchTPU, where an Accelerator was made in this process before
        dist.destroy_process_group()
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def test_trap_13_the_cause_is_blamed(tmp_path: Path) -> None:
    """Rank 1 was killed, and the errors of the others' collectives are read first."""
    request = train.function_request(reduces, (tmp_path,), index_first=True)
    with pytest.raises(tpu_magics.TrainingFailed) as caught:
        train.start(request, Options(hoist="off", timeout=60.0), workers=3)
    error = caught.value
    assert error.rank == 1 and "SIGKILL" in error.what, said(error)
    texts = [event.error_text for event in of(error).events("end")]
    assert any("onnection" in text for text in texts), texts
    assert "a consequence" in said(error)


# -- results ----------------------------------------------------------------------------------------------------------


class Awkward(torch.nn.Module):
    """Weights that safetensors refuses as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.part = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex128))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(10))


def trains_parts(model: Any, counted: Any) -> None:
    counted.to(framework.TYPE)
    optimizer = torch.optim.SGD(counted.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        out = torch.ones(4, 4, device=framework.TYPE)
        for layer in counted:
            out = layer(out)
        out.sum().backward()
        optimizer.step()
        framework.sync()
    with torch.no_grad():
        model.conv.weight.mul_(2)
        model.part.add_(1)
        model.complex.mul_(2)
    counted[0].bias.data.mul_(1.0)  # a step is pending at the end


def test_trap_14_going_home_compiles_nothing_more() -> None:
    """Fetching parameters one by one with a step pending compiled a graph for each; and channels_last, transposed,
    sparse and complex tensors are refused by safetensors."""
    model = Awkward()
    part = model.part.detach().clone()
    result = run(trains_parts, model, model.layers)
    assert result.compiles is not None and result.compiles <= 2
    assert torch.equal(model.part, part + 1) and model.part.stride() == (1, 4)
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.sparse.is_sparse and torch.equal(model.complex, torch.full((2,), 2, dtype=torch.complex128))


def product() -> float:
    x = torch.full((2, 2), 1.001, device=framework.device())
    return float((x @ x)[0, 0].item())


def test_trap_15_precision_is_set_in_time() -> None:
    """XLA_USE_BF16 is ignored after the first XLA tensor of a process."""
    assert run(product, precision="bf16").value == 2.0
    assert run(product, precision="fp32").value == pytest.approx(2 * 1.001**2, rel=1e-6)


# -- the notebook's front end -----------------------------------------------------------------------------------------


def test_trap_16_records_go_through_the_folder_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is hidden, so that front ends cannot fetch it; and a worker must not talk on the kernel's sockets."""
    monkeypatch.delenv("TPU_MAGICS_RUNS")
    assert runs_root(tmp_path).name == ".tpu_runs"
    sent: list[Any] = []
    kernel = types.SimpleNamespace(session=types.SimpleNamespace(send=lambda *args: sent.append(args)))
    shell = types.SimpleNamespace(kernel=kernel, display_pub=types.SimpleNamespace())
    monkeypatch.setattr(streams, "running_shell", lambda: shell)

    def talks() -> None:
        shell.kernel.session.send("comm_open", {})
        shell.display_pub.publish({"text/plain": "shown"})

    notebook = fake_notebook()
    result = run(talks)
    assert sent == [] and not hasattr(shell.display_pub, "publish")
    assert [what for _, kind, what in notebook.shown if kind == "display"] == [{"text/plain": "shown"}]
    assert result.run.path.parent.name == ".tpu_runs"


def test_trap_17_lines_are_those_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell's file has a name with a pid in it; the person knows it as In [n], and counts the magic's line too."""
    notebook = fake_notebook()
    monkeypatch.setattr(notebook, "cell_names", lambda: {"/tmp/ipykernel_123/456.py": "In [3]"})
    text = "\nget_ipython = print\nget_ipython().__add__\n".replace("get_ipython().__add__", "def f():\n    1 / 0")
    with pytest.raises(tpu_magics.TrainingFailed) as caught:
        train.train_cell(train.CellSource(text, "/tmp/ipykernel_123/456.py"), [], Options(hoist="off", timeout=60.0))
    assert "In [3], line 4, in f" in said(caught.value) and "ipykernel_123" not in said(caught.value)


def test_trap_18_a_background_run_has_a_display_of_its_own() -> None:
    """Its prints would land in whichever cell runs."""
    notebook = fake_notebook()
    background = type(notebook)()
    notebook.background_screen = lambda title: background  # type: ignore[method-assign]
    run(print, "from the background", background=True).wait()
    assert background.printed == "from the background\n" and notebook.printed == ""


FRESH = """
import sys, threading, time
from tpu_magics.launch import session, train
slow = {"torch", "torch_xla", "torch_tpu", "psutil", "ipywidgets", "accelerate", "transformers", "tensorflow", "jax"}
slow &= set(sys.modules)
assert not slow, slow
session.current.backend.prepare()
assert "NAME" in sys.modules and not session.current.backend.runtime_initialized()
assert threading.active_count() == 1
from tpu_magics.launch.options import Options
def trains():
    return "NAME" in sys.modules
result = train.start(train.function_request(trains), Options(hoist="off", timeout=60.0))
start, = result.run.events("start")
assert result.value and start.t - result.run.created < 5, start.t - result.run.created
assert "psutil" not in sys.modules
"""


@pytest.mark.long
def test_trap_19_slow_imports_happen_once_and_in_the_notebook(tmp_path: Path) -> None:
    """The first import of torch_xla took 6 s in each child; psutil and ipywidgets take 90 ms of the extension's 100."""
    python(FRESH.replace("NAME", framework.NAME), tmp_path)


def compiles_something() -> None:
    kept = torch.ones(3, device=framework.TYPE) * 2
    framework.sync()
    del kept


def test_trap_20_variables_of_the_runtime_work_after_the_import(tmp_path: Path) -> None:
    """XLA_FLAGS is read when the runtime comes up, in the worker, though torch_xla was imported before."""
    dump = tmp_path / "dump"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={dump} --xla_dump_hlo_as_text"
    options = Options(hoist="off", timeout=60.0, environment={"XLA_FLAGS": flags})
    train.start(train.function_request(compiles_something), options)
    assert list(dump.glob("*before_optimizations.txt"))
    assert os.environ.get("XLA_FLAGS", "") != flags


class Locked:
    """Held while the notebook forks, as a stream's lock can be."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.print_on)

    def print_on(self) -> None:
        while not self.stop.is_set():
            print(".", end="", flush=True)
            logging.getLogger("busy").debug("x")

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


@pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.long)])
def test_trap_21_another_thread_prints_while_workers_fork(times: int) -> None:
    """A lock that another thread holds at the fork is never released in the child."""
    with Locked():
        for _ in range(times):
            assert run(print, "in the worker", workers=2).status == "done"


def test_trap_22_and_the_rest() -> None:
    """Python 3.12 warns at a fork; what a thread owns (grad mode) holds in the ranks; a value is logged after the
    sync."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(int).value == 0
    with torch.no_grad():
        assert run(torch.is_grad_enabled).value is False
    with pytest.raises(TpuMagicsError):
        run(int, workers=1, steps=0)

    def logs(what: bool) -> None:
        x = torch.ones(4, device=framework.TYPE)
        for _ in range(4):
            x = x * 2
            if what:
                tpu_magics.log(total=x.sum())
            framework.sync()

    assert run(logs, True).compiles == run(logs, False).compiles
