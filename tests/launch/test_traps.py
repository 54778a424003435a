"""The launcher's traps, as they happen to real notebooks, one test for each that no other file reproduces.

What lives here: traps 1, 2, 3, 4, 9, 13, 14, 16, 19 and 21 in runs like a person's, and the index of where the others
are reproduced, which is itself checked. What does not: their details.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from . import launching
from .launching import failed, run, said

TESTS = Path(__file__).parents[1]

ELSEWHERE = {
    5: ("launch/test_train.py", "test_device_tensors_come_home_on_the_cpu"),
    6: ("launch/test_train.py", "test_tied_weights_stay_tied"),
    7: ("launch/test_guards.py", "test_an_optimizer_of_the_notebook_would_train_nothing"),
    8: ("launch/test_supervise.py", "test_interrupts_of_other_cells_do_not_reach_background_workers"),
    10: ("launch/test_process.py", "test_fork_from_the_main_thread_only"),
    11: ("launch/test_streams.py", "test_handlers_made_before_write_into_the_log"),
    12: ("launch/test_process.py", "test_what_passes_the_fork_never_returns"),
    15: ("backends/test_worker.py", "test_precision_is_set_before_the_first_tensor"),
    17: ("magics/test_forms.py", "%"),
    18: ("magics/test_background.py", "display"),
    20: ("launch/test_supervise.py", "test_the_one_that_is_elsewhere_is_named"),
    22: ("launch/test_train.py", "test_weights_that_do_not_fit_fail_whole_and_stay_on_disk"),
}
HERE = (1, 2, 3, 4, 9, 13, 14, 16, 19, 21)

pytestmark = pytest.mark.usefixtures("fresh_session")

# A notebook that did everything that used to break its workers: CPU work of all kinds, seeds, TrainingArguments.
NOTEBOOK = """
import os, sys, time
import tpu_magics
tpu_magics.init()
import torch
from torch import nn
from accelerate.utils import set_seed
from transformers import TrainingArguments
import torch_xla

set_seed(7)
arguments = TrainingArguments(output_dir="out", report_to=[])
print("runtime after seeds:", torch_xla._XLAC._xla_runtime_is_initialized(), arguments.device)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):  # a whole training loop on the CPU, with backward()
    model(torch.randn(512, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
(torch.randn(1500, 1500) @ torch.randn(1500, 1500)).sum()
del optimizer
before = {name: value.clone() for name, value in model.state_dict().items()}

def train(model):
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device=device)).pow(2).mean().backward()
        optimizer.step()
        torch_xla.sync()
    a = torch.randn(800, 800)
    (a @ a).sum()
    return torch.get_num_threads(), arguments.device.type, "torch_xla" in sys.modules

for round in range(2):
    result = tpu_magics.train(train, model, timeout=100)
    print("round", round, result.value, result.steps, result.compiles, torch.get_num_threads())
print("changed:", any(not torch.equal(before[name], value) for name, value in model.state_dict().items()))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
    def forward(self, x):
        return self.layer(x)

def build_and_train():
    set_seed(42)
    model = Net()
    order = torch.randperm(20)
    device = torch_xla.device()
    model.to(device)
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in order[:4]:
        torch.manual_seed(int(index))
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8).to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return order.tolist(), losses

on = tpu_magics.train(build_and_train, timeout=100)
off = tpu_magics.train(build_and_train, hoist="off", timeout=100)
print("hoisted:", list(on.models), list(off.models), "equal:", on.value == off.value)
print("runtime at the end:", torch_xla._XLAC._xla_runtime_is_initialized())
"""


@pytest.mark.slow
def test_a_notebook_that_did_all_that_breaks_workers(tmp_path: Path) -> None:
    """Traps 1 (a CPU backward), 2 (seeds, TrainingArguments), 3 (the random stream), 19 (imports), in one notebook."""
    file = tmp_path / "notebook.py"
    file.write_text(NOTEBOOK)
    text = launching.python(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')", tmp_path, seconds=250)
    assert "runtime after seeds: False cpu" in text
    for number in range(2):
        found = re.search(rf"round {number} \((\d+), 'xla', True\) 3 1 (\d+)", text)
        assert found is not None, text
        assert found[1] == found[2], "the worker uses as many threads as the notebook"
    assert "changed: True" in text
    assert "hoisted: ['model'] [] equal: True" in text
    assert "runtime at the end: False" in text


def test_trap_04_models_are_not_put_into_shared_memory() -> None:
    """A worker's in-place write reaches nobody, and /dev/shm holds nothing."""
    import torch

    model = torch.nn.Linear(300, 300)
    before = launching.digest(model)

    def write(model: torch.nn.Linear) -> None:
        with torch.no_grad():
            model.weight.fill_(3.0)
        mapped = "/dev/shm" in Path("/proc/self/maps").read_text()
        raise RuntimeError(f"shared: {mapped} {model.weight.is_shared()}")

    error = failed(write, model)
    assert "shared: False False" in said(error)
    assert launching.digest(model) == before


def test_trap_09_and_21_loader_workers_work_and_are_gone() -> None:
    """A DataLoader with workers trains inside a rank, and nothing of it is left (the fixture looks)."""
    import torch

    def train() -> int:
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4, num_workers=2)
        return int(sum(batch.sum() for (batch,) in loader))

    assert run(train).value == 66


def test_trap_13_the_killed_rank_is_blamed_not_the_one_that_noticed(tmp_path: Path) -> None:
    """Rank 1 of 3 is killed; rank 0 fails first, of the broken connection."""

    def train(index: int) -> None:
        if index == 1:
            (tmp_path / "gone").touch()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        while not (tmp_path / "gone").exists():
            time.sleep(0.01)
        if index == 0:
            raise RuntimeError(
                "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5"
            )
        time.sleep(60)

    from tpu_magics.errors import TrainingFailed
    from tpu_magics.launch import train as road
    from tpu_magics.launch.plan import Options

    with pytest.raises(TrainingFailed) as caught:
        road.start(road.function_request(train, index_first=True), Options(hoist="off", timeout=60), workers=3)
    assert caught.value.rank == 1
    assert "SIGKILL" in said(caught.value)


def test_trap_14_going_home_compiles_nothing_more() -> None:
    """A step is pending when the function ends, and many parameters are fetched: one graph, counted apart."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(10)))

    def train(model: torch.nn.Module) -> int:
        import torch_xla

        device = torch_xla.device()
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 8, device=device)).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()
        model(torch.ones(4, 8, device=device)).pow(2).mean().backward()
        optimizer.step()
        return 1

    result = run(train, model)
    assert (result.compiles, result.steps) == (1, 2)


def test_trap_16_the_run_folder_needs_no_server(runs: Path) -> None:
    """The contents API answers 404 for hidden folders, so all that is shown is read from the disk by the kernel."""

    def train() -> None:
        print("seen")

    result = run(train)
    assert result.run.path.parent == runs
    assert result.run.log(0) == "seen\n"


def test_every_trap_has_its_test() -> None:
    """The index above names tests that exist, and misses no trap of the twenty-two."""
    assert sorted([*ELSEWHERE, *HERE]) == list(range(1, 23))
    for number, (file, name) in ELSEWHERE.items():
        assert name in (TESTS / file).read_text(), f"trap {number}: {file} has no {name}"
