"""The device in the notebook's process: registered, and no runtime, whatever the notebook does on the CPU."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests import forks, framework
from tests.backends.torch import forked_scenarios
from tests.launch.launching import refused, run
from tpu_magics.backends.torch_tpu import device
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.strategies.forked import ForkedStrategy

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def trains() -> float:
    model = torch.nn.Linear(4, 1).to("tpu")
    loss = model(torch.ones(2, 4).to("tpu")).sum()
    loss.backward()
    return float(loss.item())


def backward() -> None:
    torch.ones(3, requires_grad=True).sum().backward()


def optimizer_step() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def seed() -> None:
    torch.manual_seed(3)


def asks_for_the_device() -> None:
    assert str(torch.accelerator.current_accelerator()) == "tpu" and torch.accelerator.is_available()


@pytest.mark.parametrize("before", [backward, optimizer_step, seed, asks_for_the_device])
def test_what_the_notebook_does_on_the_cpu_starts_no_runtime(before: object) -> None:
    assert callable(before)
    for _run in range(2):
        before()
        assert not framework.runtime_is_up()
        assert isinstance(run(trains).value, float)


def drawn() -> list[float]:
    return torch.rand(2, device="tpu").tolist()


def test_a_seed_of_the_notebook_is_that_of_the_worker() -> None:
    torch.manual_seed(5)
    first = run(drawn).value
    torch.manual_seed(5)
    assert run(drawn).value == first
    torch.manual_seed(6)
    assert run(drawn).value != first


def attention() -> list[float]:
    x = torch.ones(1, 1, 4, 2, device="tpu")
    return torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten().tolist()


def cumulated() -> list[list[float]]:
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device="tpu")
    compiled = torch.compile(lambda x: x.cumsum(1))
    return [values.cumsum(0).flatten().tolist(), values.cumprod(1).flatten().tolist(), compiled(values)[1].tolist()]


def test_what_xla_cpu_lacks_is_replaced() -> None:
    assert run(attention).value == [1.0] * 8
    assert run(cumulated).value == [[1, 2, 3, 5, 7, 9], [1, 2, 6, 4, 20, 120], [4, 9, 15]]


def pinned() -> int:
    loader = torch.utils.data.DataLoader(list(range(4)), batch_size=2, pin_memory=True)
    return sum(int(batch.pin_memory(device="tpu").sum()) for batch in loader)


def test_pinned_memory_is_left_out() -> None:
    """In a worker, and in the notebook, whose runtime it would start."""
    assert run(pinned).value == 6
    assert pinned() == 6 and not torch.ones(1).is_pinned() and not framework.runtime_is_up()
    loader = torch.utils.data.DataLoader(list(range(4)), batch_size=2, pin_memory=True, num_workers=1)
    assert sum(int(batch.sum()) for batch in loader) == 6 and not framework.runtime_is_up()


@pytest.mark.parametrize(("options", "words"), [({"precision": "bf16-downcast"}, "bf16"), ({"spmd": 2}, "DTensor")])
def test_options_of_torch_xla_are_refused(options: dict[str, object], words: str) -> None:
    error = refused(trains, **options)
    assert "is not supported with TorchTPU" in error.what and words in error.why + error.todo


@pytest.mark.parametrize(
    ("options", "words"),
    [({"cache": "programs"}, "--cache"), ({"hosts": "ray"}, "--hosts"), ({"precision": "bf16-downcast"}, "bf16-down")],
)
def test_tpu_init_refuses_what_is_of_torch_xla(options: dict[str, str], words: str) -> None:
    with pytest.raises(TpuMagicsError, match="is not supported with TorchTPU") as caught:
        session.initialise(**options)
    assert words in caught.value.what


def uses_the_device_and_trains() -> None:
    torch.ones(1, device="tpu")
    ForkedStrategy.can_spawn = False  # as on a TPU, which the notebook's runtime holds
    error = refused(trains)
    assert "The TorchTPU runtime is already initialized in this notebook" in error.what
    assert "Restart the kernel" in error.todo and 'tensor.to("tpu")' in error.todo


def test_a_notebook_that_has_used_the_device_is_told() -> None:
    assert forked_scenarios._in_fork(uses_the_device_and_trains) == ""


def test_after_load_ext_the_cpu_can_train_in_the_notebook() -> None:
    """Without it, and without a TPU, this backward() waits for libtpu for good."""
    program = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\nshell.run_line_magic('load_ext', 'tpu_magics')\n"
        "import torch\nx = torch.ones(2, requires_grad=True)\nx.sum().backward()\nprint(x.grad.tolist())"
    )
    assert forks.run("IPython", program).strip().endswith("[1.0, 1.0]")


def test_a_wrong_variable_does_not_look_for_a_tpu_that_is_not_there() -> None:
    """PJRT_DEVICE=TPU on a machine without one: libtpu would wait for it."""
    program = (
        "import os\nos.environ['PJRT_DEVICE'] = 'TPU'\n"
        "from tpu_magics.backends import pjrt_stand_in\nfrom tpu_magics.backends.torch_tpu import device\n"
        "device.register()\nprint(pjrt_stand_in.replacement())"
    )
    assert "libpjrt_cpu.so" in forks.run("os", program)


def test_every_private_name_is_there() -> None:
    for module, names in device.PRIVATE.items():
        assert [name for name in names if not hasattr(importlib.import_module(module), name)] == [], module


def test_a_torch_tpu_that_lacks_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.PRIVATE, "torch_tpu._loader", ("_init_device", "_another"))
    with pytest.raises(TpuMagicsError, match="cannot be used") as caught:
        device._imported()
    assert "torch_tpu._loader has no _another" in caught.value.why and "0.2.0" in caught.value.why


def digits(where: str) -> tuple[list[float], list[float]]:
    """A small training in the form of the quickstart's: losses, and the last weights."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10))
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _step in range(5):
        images = torch.rand(8, 1, 8, 8, generator=generator).to(where)
        labels = torch.randint(0, 10, (8,), generator=generator).to(where)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [float(value) for value in model[3].bias.tolist()]


def test_losses_and_weights_are_those_of_the_cpu() -> None:
    here, there = digits("cpu"), run(digits, "tpu").value
    assert there[0] == pytest.approx(here[0], abs=1e-5)
    assert there[1] == pytest.approx(here[1], abs=1e-5)
