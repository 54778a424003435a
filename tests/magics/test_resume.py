"""`%%tpu_train --resume` in a real kernel: plain statements, a launcher's call, a run in the background."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .kernel import Kernel

pytestmark = pytest.mark.process

SETUP = """
import glob, os, random, time, torch, torch_xla, torch_xla.core.xla_model as xm
def begin():
    xm.set_rng_state(0); torch.manual_seed(0); random.seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
def dies(step):
    if os.environ.get("TEST_KILL") == str(step):
        until = time.monotonic() + 30
        while not glob.glob("place-of-cells/cells/step*/manifest.json") and time.monotonic() < until:
            time.sleep(0.02)
        os.kill(os.getpid(), 9)
"""
STATEMENTS = """%%tpu_train {options}
model.to("xla")
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
total, history = 0.0, []
for epoch in range(3):
    for step, row in enumerate(torch.randperm(8).tolist()):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), row / 8.0).to("xla")).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        total += loss.item()
        dies(epoch * 8 + step + 1)
    history.append(total)
"""
LAUNCHED = """%%tpu_train {options}
def function(index, model):
    model.to("xla")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(20):
        optimizer.zero_grad()
        loss = model(torch.rand(2, 4).to("xla")).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        dies(step + 1)
import torch_xla.distributed.xla_multiprocessing as xmp
xmp.spawn(function, args=(model,), nprocs=1)
"""
WEIGHTS = "[float(one.detach().double().sum()) for one in model.parameters()]"


@pytest.fixture
def notebook(kernel: Kernel, tmp_path: Path) -> Iterator[Kernel]:
    kernel.run(f"%tpu_init --checkpoints {tmp_path}/place").good()
    kernel.run(SETUP).good()
    yield kernel
    kernel.run("os.environ.pop('TEST_KILL', None)\n%tpu_init --checkpoints off").good()


@pytest.mark.parametrize(("cell", "seen"), [(STATEMENTS, "(total, history)"), (LAUNCHED, "1")])
def test_a_cell_goes_on_where_its_worker_died(notebook: Kernel, cell: str, seen: str) -> None:
    notebook.run("%tpu_init --checkpoints off\nmodel = begin()").good()
    notebook.run(cell.format(options="")).good()
    whole = notebook.value(WEIGHTS), notebook.value(seen)
    place = notebook.run("%tpu_init --checkpoints {place}".replace("{place}", "place-of-cells")).good()
    assert "runs save checkpoints in" in place.printed
    notebook.run("os.environ['TEST_KILL'] = '13'\nmodel = begin()").good()
    cell = cell.format(options="--resume --save-every 3 --run-name cells")
    assert "No checkpoint in" in notebook.run(cell).printed
    notebook.run("os.environ['TEST_KILL'] = ''\nmodel = begin()").good()
    again = notebook.run(cell).good()
    resumed = re.search(r"Resuming from step (\d+),", again.printed)
    assert resumed and 3 <= int(resumed[1]) <= 13, again.printed  # a slow disk has fewer
    assert (notebook.value(WEIGHTS), notebook.value(seen)) == whole


def test_a_run_in_the_background_is_saved_before_it_is_stopped(notebook: Kernel) -> None:
    notebook.run("model = begin()").good()
    endless = LAUNCHED.replace("range(20)", "range(10 ** 7)").format(options="--background --resume --run-name far")
    notebook.run(endless).good()
    notebook.wait_until(lambda: notebook.value("_tpu.steps > 20"))
    stopped = notebook.run("%tpu_stop --save").good().printed
    assert "was stopped; the notebook's models are unchanged; it was saved at step" in stopped
    notebook.run("%tpu_init --checkpoints off").good()
    notebook.run(LAUNCHED.replace("range(20)", "range(10 ** 7)").format(options="--background")).good()
    refused = notebook.run("%tpu_stop --save")
    assert "cannot be saved" in refused.error
    notebook.run("%tpu_stop").good()
