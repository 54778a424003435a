"""A run whose training never reached the XLA device: told with the model and the line that selects the device."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla

from tests.launch.launching import digest, failed, fake_notebook, run, said
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.events import Warned, only

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

TRAINER = """
    import torch


    class Trainer:
        def __init__(self, model, device="auto"):
            self.model = model
            if device == "auto":
                self.device = "cuda" if torch.cuda.is_available() else "cpu"
            else:
                self.device = device
            self.model.to(self.device)

        def run(self):
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for _ in range(3):
                loss = self.model(torch.ones(4, 8, device=self.device)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


def trainers(folder: Path) -> Any:
    """The class of a file of the person's."""
    path = folder / "own_trainer.py"
    path.write_text(textwrap.dedent(TRAINER))
    names: dict[str, Any] = {"__name__": "own_trainer"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["Trainer"]


def told(result: TrainResult) -> list[str]:
    return [event.text for event in only(result.run.events(), Warned) if event.code == "host-training"]


def test_a_trainer_that_picks_the_cpu_is_told_with_its_line_and_fails_with_strict(tmp_path: Path) -> None:
    notebook = fake_notebook()
    model, kind = torch.nn.Linear(8, 1), trainers(tmp_path)

    def train(model: Any) -> None:
        kind(model).run()

    before = digest(model)
    result = run(train, model, workers=1, plain=True)
    (text,) = told(result)
    assert text.startswith("No step ran on the XLA device: `model` stayed on the CPU and was trained there. Line 9 of ")
    assert 'own_trainer.py selects the device: self.device = "cuda" if torch.cuda.is_available() else "cpu".' in text
    assert text.endswith("Move the model and the batches to torch_xla.device(), or use Accelerator().prepare().")
    assert f"tpu_magics: {text}\n" in notebook.printed
    trained = digest(model)
    assert trained != before  # the weights come home all the same
    error = failed(train, model, workers=1, strict=True)
    assert error.what == "No step ran on the XLA device: `model` stayed on the CPU and was trained there."
    assert "With --strict" in error.why and "own_trainer.py selects the device" in said(error)
    assert digest(model) == trained


def on_the_device() -> None:
    kind = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(kind.parameters(), lr=0.1)
    for _ in range(2):
        kind(torch.ones(4, 8, device="xla")).mean().backward()
        optimizer.step()
        torch_xla.sync()


def never_synced() -> None:
    on_the_host = torch.nn.Linear(8, 1)
    on_the_host(torch.ones(4, 8)).mean().backward()  # a look at the loss before training
    torch.nn.Linear(8, 1).to("xla")(torch.ones(4, 8, device="xla")).mean().backward()


def only_evaluated() -> float:
    with torch.no_grad():
        return float(torch.nn.Linear(8, 1)(torch.ones(4, 8)).mean())


def only_logged() -> None:
    import tpu_magics

    tpu_magics.log(loss=1.0)


@pytest.mark.parametrize("function", [on_the_device, never_synced, only_evaluated, only_logged])
def test_no_word_of_it_where_the_device_trained_or_nothing_did(function: Callable[[], Any]) -> None:
    assert told(run(function, workers=1, strict=True)) == []
