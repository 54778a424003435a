"""Results as pickles: XLA tensors become CPU tensors, and what cannot be pickled is named."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests import framework
from tpu_magics.backends.torch.pickling import dumps
from tpu_magics.errors import TpuMagicsError

from .forked_scenarios import in_worker

pytestmark = pytest.mark.process


@dataclasses.dataclass
class Result:
    loss: Any
    history: list[Any]


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Counted(nn.Parameter):
    pass


# -- on the CPU --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [None, 3, "text", [1, {"a": (2, 3)}], {1, 2}, Result(1.5, [1, 2]), torch.float16, torch.device("meta")],
)
def test_plain_values(value: Any) -> None:
    assert pickle.loads(dumps(value)) == value


def test_cpu_tensors_and_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    found = pickle.loads(dumps({"model": model, "tensor": torch.arange(3)}))
    assert torch.equal(found["model"][0].weight, model[0].weight)
    assert found["tensor"].tolist() == [0, 1, 2]


def local_function() -> Any:
    def hook() -> None:
        pass

    return hook


def local_object() -> Any:
    class Local:
        pass

    return Local()


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].hook = lambda: None
    return model


def knotted() -> list[Any]:
    knot: list[Any] = [1]
    knot.append({"self": knot, "file": sys.stderr.buffer})
    return knot


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (threading.Lock(), "value", "of type `_thread.lock`"),
        ({"model": hooked()}, "value['model'].1.hook", "the function `<lambda>`, defined inside `hooked`"),
        ([1, (2, local_function())], "value[1][1]", "the function `hook`, defined inside `local_function`"),
        ({"a": [local_object()]}, "value['a'][0]", "of the class `Local`, defined inside `local_object`"),
        (Result(1, ["a", "b", threading.Lock()]), "value.history[2]", "of type `_thread.lock`"),
        ((number for number in range(3)), "value", "of type `generator`"),
        ({threading.Lock(): 1}, "a key of value", "of type `_thread.lock`"),
        (Slotted(), "value.lock", "of type `_thread.lock`"),
        (knotted(), "value[1]['file']", "of type `_io."),
        ({"tensor": torch.ones(3), "lock": threading.Lock()}, "value['lock']", "of type `_thread.lock`"),
    ],
)
def test_what_cannot_be_pickled_is_named(value: Any, path: str, kind: str) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        dumps(value)
    assert caught.value.what.startswith(f"`{path}` cannot be returned to the notebook: it is {kind}")
    assert "pickle" in caught.value.why
    assert "state_dict()" in caught.value.todo


def test_the_name_that_the_person_knows() -> None:
    with pytest.raises(TpuMagicsError, match=r"`outputs\[0\]` cannot be returned"):
        dumps([threading.Lock()], "outputs")


def test_a_nest_too_deep_ends_in_the_same_error() -> None:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    with pytest.raises(TpuMagicsError, match="RecursionError"):
        dumps(nest)
    while nest:  # its own destructor would recurse as deep
        nest = nest.pop()


def test_a_class_that_refuses_is_named() -> None:
    class Refusing:
        def __reduce__(self) -> Any:
            raise ValueError("not me")

    with pytest.raises(TpuMagicsError, match="ValueError: not me"):
        dumps({"x": Refusing()})


# -- from a device -----------------------------------------------------------------------------------------------------
def everything() -> dict[str, Any]:
    """Made in the worker: XLA tensors in all the places that results have."""

    device = framework.device()
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    output = model(torch.ones(4, 3).to(device))
    loss = output.square().sum()
    loss.backward()
    optimizer.step()
    scheduler.step()
    noted = torch.ones(2, device=device)
    noted.note = "kept"  # type: ignore[attr-defined]
    shared = torch.arange(3, device=device)
    return {
        "loss": loss,
        "item": Result(loss.detach(), [output, (output[0], {"deep": output.bfloat16()})]),
        "model": model,
        "optimizer": optimizer.state_dict(),
        "whole_optimizer": optimizer,
        "scheduler": scheduler.state_dict(),
        "parameter": model[0].weight,
        "gradient": model[0].weight.grad,
        "counted": Counted(torch.ones(2, device=device), requires_grad=False),
        "noted": noted,
        "twice": [shared, shared],
        "empty": torch.empty(0, 2, device=device),
        "bool": torch.tensor([True, False], device=device),
        "complex": torch.ones(2, dtype=torch.complex64, device=device),
        "device": device,
        "cpu": torch.arange(2),
        "frozen": frozenset({1}),
    }


def tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    class Finder(pickle.Pickler):
        def reducer_override(self, item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                found.append(item)
                return int, ()
            return NotImplemented

    with open("/dev/null", "wb") as sink:
        Finder(sink).dump(value)
    return found


def scenario_xla_tensors_come_home_without_a_runtime() -> None:
    folder = Path(tempfile.mkdtemp())

    def work() -> None:
        value = everything()
        compiles = framework.compiles()
        (folder / "value.pkl").write_bytes(dumps(value))
        if not framework.TORCH_TPU:
            assert framework.compiles() == compiles + 1  # one sync ran all that was pending
        expected = {name: value[name].detach().cpu() for name in ("loss", "parameter", "gradient", "bool", "complex")}
        torch.save(expected, folder / "expected.pt")

    in_worker(work)
    found = pickle.loads((folder / "value.pkl").read_bytes())
    assert not framework.runtime_is_up()
    everywhere = tensors(found)
    assert len(everywhere) > 20
    assert {tensor.device.type for tensor in everywhere} == {"cpu"}
    for name, tensor in torch.load(folder / "expected.pt").items():
        assert torch.equal(found[name], tensor), name
    assert not found["loss"].requires_grad  # the graph behind it stayed there
    assert not found["item"].loss.requires_grad
    assert found["item"].history[1][1]["deep"].dtype is torch.bfloat16
    assert type(found["parameter"]) is nn.Parameter
    assert found["parameter"] is found["model"][0].weight
    assert found["twice"][0] is found["twice"][1]
    assert found["noted"].note == "kept"
    assert found["empty"].shape == (0, 2)
    assert found["device"].type == "cpu"  # where its tensors are now
    found["model"](torch.ones(4, 3)).sum().backward()
    assert found["whole_optimizer"].param_groups[0]["params"][0] is found["model"][0].weight
    found["whole_optimizer"].step()
    assert not framework.runtime_is_up()


def scenario_plain_pickle_would_start_a_runtime() -> None:
    """The trap itself: if this ever changes, the care above can go."""
    folder = Path(tempfile.mkdtemp())

    def work() -> None:
        (folder / "value.pkl").write_bytes(pickle.dumps(torch.ones(2, device=framework.device())))

    in_worker(work)

    def load() -> None:
        pickle.loads((folder / "value.pkl").read_bytes())
        assert framework.runtime_is_up()

    in_worker(load)


def scenario_pickling_plain_values_starts_no_runtime() -> None:
    dumps({"a": torch.ones(2), "model": nn.Linear(2, 2)})
    assert not framework.runtime_is_up()


def scenario_what_is_wrong_is_found_among_xla_tensors() -> None:
    def work() -> None:
        value = everything()
        value["item"].history.append(threading.Lock())
        with pytest.raises(TpuMagicsError, match=r"`value\['item'\]\.history\[2\]` cannot be returned"):
            dumps(value)

    in_worker(work)


def test_scenario(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == ""
