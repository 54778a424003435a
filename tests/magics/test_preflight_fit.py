"""`%tpu_preflight --fit NAME` in a real kernel, with the real compiler: what is shown, and what an interrupt leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.preflight.conftest import tpu_compiler  # noqa: F401

from .kernel import Cell, Kernel

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("tpu_compiler")]

STEP = """
import torch
def step(batch=16, **options):
    import torch_xla
    device = torch_xla.device()
    model = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.zeros(batch, 8).to(device)).mean().backward()
        optimizer.step()
        torch_xla.sync()
"""


def searched_until(kernel: Kernel, code: str, text: str) -> Cell:
    """A search that is interrupted when its progress says that."""
    kernel.run(STEP).good()
    cell = kernel.send(code)
    kernel.wait_for(cell, text, timeout=200)
    kernel.interrupt()
    kernel.finish(cell, timeout=60)
    return cell


def test_an_interrupt_shows_and_binds_what_was_found(kernel: Kernel) -> None:
    cell = searched_until(kernel, "%tpu_preflight step --target v5e-1,v6e-1 --fit batch -o found", "(16 fits)")
    assert cell.error_type == "SearchInterrupted"
    assert "The search for the largest batch was interrupted." in cell.said and "Run it again to continue" in cell.said
    assert "at least 16" in cell.shown and "The search was interrupted: batch = 16 fits" in cell.shown
    assert kernel.value("[(one.largest, one.interrupted) for one in found.fit]") == [(16, True)] * 2
    assert kernel.value("found['v6e-1'].fits and found.largest('v6e-1').nice") == 16
    assert kernel.descendants() == []


def test_the_function_tells_it_with_its_error(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(STEP).good()
    cell = searched_until(
        kernel, "import tpu_magics\ntpu_magics.preflight(step, 24, target='v5e-1', fit='batch')", "(24 fits)"
    )
    assert cell.error_type == "SearchInterrupted" and "at least 24" in cell.shown
    assert kernel.value("__import__('sys').last_value.found.fit[0].largest") == 24
    assert kernel.descendants() == []


def test_names_that_are_no_size(kernel: Kernel) -> None:
    kernel.run(f"{STEP}\nmodel = torch.nn.Linear(8, 8)").good()
    cell = kernel.run("%tpu_preflight step --target v5e-1 --fit model")
    assert cell.error_type == "TpuMagicsError" and "--fit model: its value is an object of type Linear." in cell.said
    assert "(in_features" not in cell.said
    cell = kernel.run("%tpu_preflight step --target v5e-1 --fit rows")
    assert "--fit rows: there is no such name." in cell.said and "add rows=8 to the ARGs" in cell.said
