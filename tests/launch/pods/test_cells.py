"""Cells of a notebook, trained on hosts: three forms, classes, models, displays.

A real IPython shell in a process of its own, on a real cluster.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.pods import clusters
from tests.launch.pods.clusters import Nodes
from tests.magics.kernel import ROOT, kernel_environment, python, without_colours

pytestmark = [pytest.mark.process, pytest.mark.long]  # in short: test_bundle.py, test_training.py

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for number, cell in enumerate({cells!r}, start=1):
    print(f"== {{number}}", flush=True)
    shell.run_cell(cell, store_history=True)
"""
NAMES = """
import torch
from dataclasses import dataclass

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)

@dataclass
class Report:
    rank: int
    loss: float

rate = 0.1
table = torch.arange(600_000, dtype=torch.float32)   # 2.4 MB: goes through the object store

def batch(step, rank):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))

def train(model, steps=3):
    import torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
    model.to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(batch(step, xr.global_ordinal()).to(torch_xla.device())) ** 2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
    return Report(xr.global_ordinal(), loss.item())

torch.manual_seed(3)
model = Net(8)
before = model.layer.weight.detach().clone()
"""
FORM_1 = """%%tpu_train model
from IPython.display import HTML, display

def training_function(model):
    display(HTML("<b>bold</b>"))
    print("last", float(table[-1]))
    return train(model)
"""
HOISTED = """%%tpu_train
def builds_its_own():
    torch.manual_seed(5)
    net = Net(16)
    return train(net).loss
"""
FORM_2 = """%%tpu_train
from accelerate import notebook_launcher

def main(scale, text):
    import torch_xla.runtime as xr
    return scale * xr.global_ordinal(), text

notebook_launcher(main, args=(10, "given"), num_processes=4)
"""
FORM_3 = """%%tpu_train
class Local:
    here = 7

def add(x):
    return x + offset

offset = 5
import torch_xla.runtime as xr
size = xr.world_size()
added = add(size)
report = train(model)
local = Local()
lock = __import__("threading").Lock()
size
"""
RANDOM = """%%tpu_train
def draws():
    return torch.rand(2).tolist()
"""


def run_cells(folder: Path, *cells: str) -> dict[int, str]:
    """What each cell prints, by its number."""
    text = python(SHELL.format(cells=cells), folder, timeout=600)
    parts = re.split(r"(?m)^== (?=\d+$)", without_colours(text))[1:]
    return {int(part.partition("\n")[0]): part.partition("\n")[2] for part in parts}


def test_a_cell_trains_on_the_hosts_of_a_cluster_that_the_notebook_is_outside_of(shared: Nodes, tmp_path: Path) -> None:
    said = run_cells(
        tmp_path,
        "%load_ext tpu_magics",
        f"%tpu_init --hosts {shared.client} -n 4",
        NAMES,
        FORM_3,
        "print(size, added, offset, type(report) is Report, local.here, type(local) is Local, _tpu.left)",
        "print([type(one) is Report for one in _tpu.values], torch.equal(model.layer.weight, before))",
    )
    assert said[5].startswith("4 9 5 True 7 True {'lock'"), said
    assert said[6].strip().endswith("False"), said


def test_all_forms_of_cells_train_on_hosts(nodes: Nodes, tmp_path: Path) -> None:
    said = run_cells(
        tmp_path,
        "%load_ext tpu_magics",
        f"%tpu_init --hosts {nodes.cluster.address} -n 4",
        NAMES,
        FORM_1,
        "print([type(one) is Report and one.rank for one in _tpu.values], torch.equal(model.layer.weight, before))",
        HOISTED,
        "print(list(_tpu.models), type(_tpu.models['net']) is Net, _tpu.value, len(_tpu.values))",
        FORM_2,
        "print(_tpu.values)",
        FORM_3,
        "print(size, added, offset, type(report) is Report, local.here, type(local) is Local, _tpu.left)",
        "torch.manual_seed(8)\n" + RANDOM.replace("%%tpu_train\n", "") + "state = torch.get_rng_state()",
        "%tpu_train draws",
        "torch.set_rng_state(state)\nexpected = torch.rand(2).tolist()\nprint(_tpu.values == [expected] * 4)",
        "%tpu_init --hosts off -n 4",
        "torch.manual_seed(3); model = Net(8)\n%tpu_train train model",
        "print([one.loss for one in _tpu.values])",
    )
    assert "<IPython.core.display.HTML object>" in said[4] and "last 599999.0" in said[4], said[4]
    assert said[5].strip() == "[0, 1, 2, 3] False", said[5]
    assert "hoisted `net = Net(16)` from line 4" in said[6] and "once instead of 4 times" in said[6], said[6]
    assert said[7].startswith("['net'] True") and said[7].endswith("4\n"), said[7]
    assert said[9].strip() == str([(10 * rank, "given") for rank in range(4)]), said[9]
    assert said[10].startswith("4\n"), said[10]
    assert said[11].startswith("4 9 5 True 7 True {'lock'"), said[11]
    assert said[14].strip() == "True", said[14]


WAITS = """
import sys, pathlib
from tpu_magics.launch import session, train
from tests.launch.pods.test_failing import waits
session.initialise(hosts=sys.argv[1])
train.train(waits, sys.argv[2])
"""


def test_a_killed_kernel_leaves_nothing_on_the_hosts(nodes: Nodes, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS, nodes.cluster.address, str(tmp_path)]
    environment = {**kernel_environment({}), "TPU_MAGICS_RUNS": str(tmp_path / "r")}
    said = tmp_path / "said"
    with said.open("wb") as log:
        kernel = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 90
        while len(list(tmp_path.glob("rank-*"))) < 2 and kernel.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        assert len(clusters.ours()) >= 6, said.read_text()  # on each host an actor, its process and one worker
    finally:
        kernel.kill()
        kernel.wait()
    assert not clusters.wait_gone()
