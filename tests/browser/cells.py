"""Cells that the tests in a browser run: a function that trains until it is stopped, one that ends soon, and one that
breaks a rule.
"""

from __future__ import annotations

LOAD = "%load_ext tpu_magics\n%tpu_init"

# Another width every third step, as batches that are padded to their own longest text have.
STEPS = """
def train(steps=6):
    import time
    import torch
    import torch_xla
    import tpu_magics
    device = torch_xla.device()
    weights = torch.ones(8, device=device)
    for step in range(steps):
        width = 3 + step // 3 % 60
        batch = torch.ones(width, 8, device=device)
        loss = (batch @ weights).mean()
        torch_xla.sync()
        tpu_magics.log(loss=loss)
        time.sleep(0.02 if steps < 100 else 0.1)
"""
SHORT = f"%%tpu_train\n{STEPS.strip()}"
ENDLESS = f"%%tpu_train --run-name endless\n{STEPS.strip().replace('steps=6', 'steps=1_000_000')}"
SYNC = "torch_xla.sync()"
# Recompiles once, when a file of this name is made beside the notebook.
GO = "go"
WAITING = """
%%tpu_train --run-name waiting
def train(steps=1_000_000):
    import pathlib
    import time
    import torch
    import torch_xla
    import tpu_magics
    device = torch_xla.device()
    for step in range(steps):
        width = 4 if pathlib.Path("go").exists() else 3
        loss = torch.ones(width, 8, device=device).mean()
        torch_xla.sync()
        tpu_magics.log(loss=loss)
        time.sleep(0.1)
""".strip()

# Has done all its steps, and ends when that file is made.
LASTING = """
%%tpu_train --run-name lasting
def train(steps=6):
    import pathlib
    import time
    import torch
    import torch_xla
    import tpu_magics
    device = torch_xla.device()
    for step in range(steps):
        loss = torch.ones(3 + step // 3, 8, device=device).mean()
        torch_xla.sync()
        tpu_magics.log(loss=loss)
        time.sleep(0.5)
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
""".strip()

BREAKS = """
import torch_xla

def training_function(model, loader):
    for batch in loader:
        loss = model(batch)
        print(loss.item())
        torch_xla.sync()
"""
BROKEN = "print(loss.item())"


def line_of(cell: str, text: str) -> int:
    """The number of the line that holds a text, from 1, as a record counts."""
    return next(number for number, line in enumerate(cell.splitlines(), 1) if text in line)
