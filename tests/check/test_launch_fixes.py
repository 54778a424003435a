"""The group `launch`: the code that `--fix` writes, run before and after on XLA:CPU."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests import forks
from tests.check.group_checks import TORCH_XLA, GroupChecks
from tpu_magics.check.rules import RULES

pytestmark = pytest.mark.process

fixed_text = GroupChecks([rule for rule in RULES if rule.group == "launch"]).fixed_text


def run(*texts: str, folder: Path) -> list[str]:
    """What programs print on XLA:CPU, one after the other in a process of their own; the error where one raises."""
    names = [f"program_{number}" for number, _ in enumerate(texts)]
    for name, text in zip(names, texts, strict=True):
        (folder / f"{name}.py").write_text(text)
    (folder / "main.py").write_text(
        textwrap.dedent(
            f"""
            import importlib
            for name in {names}:
                try:
                    importlib.import_module(name).main()
                except Exception as error:
                    print(type(error).__name__, error)
                print("--", flush=True)
            """
        )
    )
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    return forks.run("torch_xla", folder / "main.py", cwd=folder, environment=environment).split("--\n")[:-1]


# -- fixes that are run ----------------------------------------------------------------------------------------------

TRAINING = TORCH_XLA + textwrap.dedent(
    """
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 2))


    def main():
        torch.manual_seed(0)
        device = xm.xla_device()
        model = torch.nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in LOADER:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            STEP
        print(model.weight.tolist())
    """
)
PLAIN = "torch.utils.data.DataLoader(data, batch_size=8)"
ON_DEVICE = f"pl.MpDeviceLoader({PLAIN}, device)"
WITH, WITHOUT = "xm.optimizer_step(optimizer, barrier=True)", "xm.optimizer_step(optimizer, barrier=False)"
BARRIERS = (
    (PLAIN, "xm.optimizer_step(optimizer)", WITH),
    (PLAIN, WITHOUT, WITH),
    (ON_DEVICE, WITH, WITHOUT),
)


@pytest.mark.long
def test_a_barrier_is_fixed_and_the_weights_are_equal(tmp_path: Path) -> None:
    pytest.importorskip("torch_xla")
    texts = []
    for loader, step, after in BARRIERS:
        text = TRAINING.replace("LOADER", loader).replace("STEP", step)
        assert fixed_text(text) == text.replace(step, after)
        texts += [text, fixed_text(text)]
    weights = [np.array(json.loads(printed)) for printed in run(*texts, folder=tmp_path)]
    assert [one.shape for one in weights] == [(2, 4)] * 6
    for other in weights[1:]:  # without a barrier, one graph can hold several steps, which XLA may round differently
        np.testing.assert_allclose(other, weights[0], atol=1e-6)


LAUNCHED = TORCH_XLA + textwrap.dedent(
    """
    import torch_xla.distributed.xla_multiprocessing as xmp


    def _mp_fn(index):
        weight = torch.arange(6.0).to(xm.xla_device()) * 2
        torch.save({"weight": weight, "step": 3}, "out.pt")


    def main():
        xmp.spawn(_mp_fn, nprocs=8, start_method="fork")
        found = torch.load("out.pt", map_location="cpu")
        print(found["weight"].tolist(), found["step"])
    """
)


@pytest.mark.long
def test_what_torch_xla_refuses_is_taken_out_and_files_hold_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch_xla")
    allowed = LAUNCHED.replace("nprocs=8", "nprocs=None")
    saved = allowed.replace("torch.save(", "xm.save(")
    assert fixed_text(LAUNCHED) == fixed_text(allowed) == saved
    refused, *others = run(LAUNCHED, allowed, saved, folder=tmp_path)
    assert "ValueError Unsupported nprocs (8)" in refused
    assert others == ["[0.0, 2.0, 4.0, 6.0, 8.0, 10.0] 3\n"] * 2


# -- fixes that are read ---------------------------------------------------------------------------------------------


def test_ranks_that_step_alone_are_given_the_reducing_step() -> None:
    text = TORCH_XLA + textwrap.dedent(
        """
        def _mp_fn(index, model, loader):
            optimizer = torch.optim.SGD(model.to(xm.xla_device()).parameters(), lr=0.1)
            for x in pl.MpDeviceLoader(loader, xm.xla_device()):
                model(x).sum().backward()
                optimizer.step()


        torch_xla.launch(_mp_fn, args=(model, loader))
        """
    )
    assert fixed_text(text) == text.replace("optimizer.step()", "xm.optimizer_step(optimizer)")


def test_a_launch_in_a_notebook_gets_fork() -> None:
    text = "import torch_xla\ndef f(index):\n    pass\n\ntorch_xla.launch(f)\ntorch_xla.launch(f, args=())\n"
    after = fixed_text(text, "nb.ipynb", 1)
    assert after.endswith(
        'torch_xla.launch(f, start_method="fork")\ntorch_xla.launch(f, start_method="fork", args=())\n'
    )
